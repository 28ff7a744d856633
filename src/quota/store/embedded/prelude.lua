--[[ prelude: the globals that a script sees; run once per Lua, never by a script.
  takes    call, pcall   commands of the store (the first raises, the second returns {err = ...})
           explain       (error, as table?) -> what Redis shows of an error; raises when the script is stopped
           sha1hex       (string) -> 40 hex digits
  returns  globals that can't be written, and the table behind them, which the store fills with KEYS and ARGV ]]
local call, pcall_command, explain, sha1hex = ...
local raw_pcall, raw_xpcall, raw_set, raw_get, set_meta = pcall, xpcall, rawset, rawget, setmetatable
local readonly = 'Attempt to modify a readonly table'
local behind = {} -- sealed table -> the table it shows

local function seal(inner)
  local outer = set_meta({}, {
    __index = inner,
    __newindex = function() error(readonly, 2) end,
    __metatable = false,
  })
  behind[outer] = inner
  return outer
end

local function refuse(...)
  for _, target in ipairs({ ... }) do
    if behind[target] then error(readonly, 0) end
  end
end

local function finish(as_table, ok, ...)
  if ok then return true, ... end
  return false, explain((...), as_table)
end

local redis = {
  call = call,
  pcall = pcall_command,
  sha1hex = function(...)
    if select('#', ...) ~= 1 then error({ err = 'ERR wrong number of arguments' }) end
    return sha1hex((tostring((...))))
  end,
  error_reply = function(...)
    local text = ...
    if select('#', ...) ~= 1 or type(text) ~= 'string' then
      return { err = 'ERR wrong number or type of arguments' }
    end
    if text:sub(1, 1) == '-' then text = text:sub(2) end
    local code, rest = text:match('^([^ ]*) (.*)$')
    if not code then code, rest = 'ERR', text end
    return { err = code .. ' ' .. rest:gsub('^[\r\n]+', ''):gsub('[\r\n]+$', '') }
  end,
  status_reply = function(...)
    if select('#', ...) ~= 1 or type((...)) ~= 'string' then
      return { err = 'ERR wrong number or type of arguments' }
    end
    return { ok = (...) }
  end,
  log = function(...)
    if select('#', ...) < 2 then
      error({ err = 'ERR redis.log() requires two arguments or more.' })
    end
  end,
  LOG_DEBUG = 0,
  LOG_VERBOSE = 1,
  LOG_NOTICE = 2,
  LOG_WARNING = 3,
  REDIS_VERSION = '7.4.0',
  REDIS_VERSION_NUM = 0x00070400,
}

string.dump = nil
getmetatable('').__metatable = false

local globals = {
  redis = seal(redis),
  string = seal(string),
  table = seal(table),
  math = seal(math),
  os = seal({ clock = os.clock }),
  pcall = function(...) return finish(false, raw_pcall(...)) end,
  xpcall = function(work, handler)
    return finish(true, raw_xpcall(work, function(fault) return handler(explain(fault, true)) end))
  end,
  rawset = function(target, key, value)
    refuse(target)
    return raw_set(target, key, value)
  end,
  rawget = function(target, key) return raw_get(behind[target] or target, key) end,
  setmetatable = function(target, meta)
    refuse(target)
    return set_meta(target, meta)
  end,
}
for _, name in ipairs({
  'assert', 'error', 'getmetatable', 'ipairs', 'next', 'pairs', 'rawequal', 'select', 'tonumber', 'tostring', 'type',
  'unpack', '_VERSION',
}) do
  globals[name] = _G[name]
end

local sealed = seal(globals)
globals._G = sealed
set_meta(globals, {
  __index = function(_, name)
    error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
  end,
})
return sealed, globals
