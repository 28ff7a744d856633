#!lua flags=allow-oom
--[[ reap: close a lease whose deadline has passed, by what it is known to have used.
  KEYS[1]  session  hash: owner, used, held, open
  KEYS[2]  lease n  hash: state, granted, period, owner, terms, tally, waste
  KEYS[3]  quota n  plain integer: units not yet admitted
  KEYS[4]  budget   hash: taken, held, settled, rows, key:<owner>; of the lease's period
  KEYS[5]  leases   sorted set: <sid>:<n>:<period>:<granted> by deadline
  KEYS[6]  ledger   stream, one row per closed lease; of the lease's period
  ARGV     1 sid  2 n  3 period  4 granted (1 to 4 as the member of leases says)  5 force: 1 or 0
           6 tombstone keep, ms  7 ledger retention, ms  8 meta, <= 256 bytes
  returns  {'closed', how, charged, returned, excess} with how = reaped, blind (no quota key), lost (no lease), forced
           {'not due', deadline} | {'unknown'} | {'corrupt', key} | {'bad argument', index}
  bound    at most 24 commands; 6 keys; no loop over data
  keeps    charged = max(sum of tallies, granted - left - sum of wastes), at most granted; nothing before the deadline
           unless forced; a corrupt lease moves to quarantine (deadline 2^53-1) and its budget stays held ]]
--include amounts.lua
local QUARANTINE = exact(LIMIT)
--include close.lua

local granted, force = whole(ARGV[4]), ARGV[5] == '1'
if granted and granted < 1 then return { 'bad argument', 4 } end
for i, value in ipairs({ granted or -1, whole(ARGV[5]) or -1, whole(ARGV[6]) or -1, whole(ARGV[7]) or -1 }) do -- 4
  if value < 0 then return { 'bad argument', 3 + i } end
end
if #ARGV[8] > 256 then return { 'bad argument', 8 } end
local member = ARGV[1] .. ':' .. ARGV[2] .. ':' .. ARGV[3] .. ':' .. ARGV[4]

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local score = redis.pcall('ZSCORE', KEYS[5], member)
if type(score) == 'table' then return { 'corrupt', KEYS[5] } end
if not score then return { 'unknown' } end
local deadline = tonumber(score)
if deadline > now and not force then return { 'not due', deadline } end

local session = redis.pcall('HMGET', KEYS[1], 'owner', 'used', 'held', 'open', 'n')
local lease = redis.pcall('HMGET', KEYS[2], 'state', 'granted', 'period', 'owner', 'terms', 'tally', 'waste')
local quota = redis.pcall('GET', KEYS[3])
local budget = redis.pcall('HMGET', KEYS[4], 'taken', 'held', 'settled', 'rows')
local rows = redis.pcall('XLEN', KEYS[6])
local function quarantine(key)
  redis.call('ZADD', KEYS[5], QUARANTINE, member)
  return { 'corrupt', key }
end
for i, read in pairs({ [1] = session, [2] = lease, [3] = quota or 0, [4] = budget, [6] = rows }) do -- 5 keys
  if type(read) == 'table' and read.err then return quarantine(KEYS[i]) end
end
if budget[1] and not (whole(budget[1]) and whole(budget[2]) and whole(budget[3]) and whole(budget[4])) then
  return quarantine(KEYS[4])
end
if session[1] and not (whole(session[2]) and whole(session[3]) and whole(session[4])) then return quarantine(KEYS[1]) end
local left = quota and whole(quota)
if quota and not left then return quarantine(KEYS[3]) end
if left and granted and left > granted then return quarantine(KEYS[3]) end -- nobody of ours ever adds to a quota
local tally, waste = whole(lease[6] or '0'), whole(lease[7] or '0')
if not (tally and waste) then return quarantine(KEYS[2]) end
if lease[1] and (lease[1] ~= 'open' or lease[2] ~= ARGV[4] or lease[3] ~= ARGV[3]) then return quarantine(KEYS[2]) end

local how, used = force and 'forced' or 'reaped', tally
if not lease[1] then
  how, used = 'lost', 0
elseif not left then
  how = 'blind'
else
  used = math.max(tally, granted - left - waste)
end
local charged = math.min(used, granted)
close({
  keys = { session = KEYS[1], lease = KEYS[2], quota = KEYS[3], budget = KEYS[4], leases = KEYS[5], ledger = KEYS[6] },
  member = member, sid = ARGV[1], n = ARGV[2], owner = lease[4] or session[1], terms = lease[5],
  granted = granted, charged = charged, excess = used - charged, tally = tally, waste = waste, how = how, meta = ARGV[8],
  budget_there = budget[1], session_there = session[1] and (whole(session[5]) or 0) >= tonumber(ARGV[2]), lease_there = lease[1], keep = ARGV[6], retention = ARGV[7],
})
return { 'closed', how, charged, granted - charged, used - charged }
