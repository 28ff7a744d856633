#!lua
--[[ reserve: take an envelope out of a budget for one session, join the one that is open, or renew it.
  KEYS[1]  account  hash: cap, frozen, last period opened, credit:<period> (top-ups), plan, since, cap_before
  KEYS[2]  session  hash: owner, terms, n (current lease), cap, used, held, open, ended
  KEYS[3]  lease n  hash: state, granted, period, owner, terms, deadline, tally, waste, in, seen, a:<attachment>
  KEYS[4]  quota n  plain integer: units of lease n not yet admitted
  KEYS[5]  budget   hash: taken, held, settled, rows, key:<owner>; of the period in ARGV[3]
  KEYS[6]  leases   sorted set: <sid>:<n>:<period>:<granted> by deadline
  KEYS[7]  streams  sorted set: live streams of the key by deadline
  ARGV     1 sid  2 n  3 period  4 window start, s  5 window end, s  6 owner  7 terms  8 attachment  9 stream
           10 want  11 floor  12 least (<= floor, want)  13 cap  14 share  15 key cap or '-'  16 session cap or '-'
           17 streams cap  18 lifetime, ms  19 lease keep, ms  20 session keep, ms  21 budget keep, ms  22 plan
  returns  {'opened' | 'joined' | 'kept', n, granted, left in envelope, free in budget or -1, period, now, cap}
           {'moved', current n, now} | {'closed', n, now} | {'stale period', now} | {'stale plan', now}
           {'refuse', why, left, until ms, now} with why = budget, held, session, key, streams, leases, frozen, account
           {'ended' | 'conflict' | 'not yours' | 'lost', now} | {'corrupt', key} | {'bad argument', index}
  bound    at most 30 commands; 7 keys; removes at most 8 dead streams; no other loop
  keeps    replays and joins before every check; a lease is created only as n = current + 1;
           grant = min(want, max(floor, free/share), free, rooms), free being the smaller of the account's and the key's, and taken never passes the cap in force;
           the cap in force is the stored one plus the period's top-ups, and comes back with the answer (the one sent is
           what the gateway believes, so that it can tell that it is behind); a period that began before the latest plan
           has the cap of the plan before; windows of an older plan are turned away ]]
--include amounts.lua
local QUARANTINE = LIMIT

local sid, period, owner, terms, attachment, stream = ARGV[1], ARGV[3], ARGV[6], ARGV[7], 'a:' .. ARGV[8], ARGV[9]
local number = {}
for _, i in ipairs({ 2, 4, 5, 10, 11, 12, 13, 14, 17, 18, 19, 20, 21, 22 }) do -- 14 arguments
  number[i] = whole(ARGV[i])
  if not number[i] then return { 'bad argument', i } end
end
local function optional(i) return ARGV[i] == '-' and LIMIT or whole(ARGV[i]) end
local key_cap, session_cap = optional(15), optional(16)
if not key_cap then return { 'bad argument', 15 } end
if not session_cap then return { 'bad argument', 16 } end
local n, want, floor, least, share = number[2], number[10], number[11], number[12], number[14]
if n < 1 then return { 'bad argument', 2 } end
if share < 1 then return { 'bad argument', 14 } end
if least < 1 or least > floor or least > want then return { 'bad argument', 12 } end

-- Read everything (which also touches the type of every key) before anything is decided or written.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local account = redis.pcall('HMGET', KEYS[1], 'cap', 'frozen', 'last', 'credit:' .. period, 'plan', 'since', 'cap_before')
local session = redis.pcall('HMGET', KEYS[2], 'owner', 'terms', 'n', 'cap', 'used', 'held', 'open', 'ended')
local lease = redis.pcall('HMGET', KEYS[3], 'state', 'granted', 'period', 'owner', 'deadline', 'in', 'seen', attachment)
local quota = redis.pcall('GET', KEYS[4])
local budget = redis.pcall('HMGET', KEYS[5], 'taken', 'held', 'settled', 'key:' .. owner)
local queue = redis.pcall('ZCARD', KEYS[6])
local live = redis.pcall('ZSCORE', KEYS[7], stream)
for i, read in ipairs({ account, session, lease, quota or 0, budget, queue, live or 0 }) do -- 7 keys
  if type(read) == 'table' and read.err then return { 'corrupt', KEYS[i] } end
end
local left = quota and whole(quota)
if quota and not left then return { 'corrupt', KEYS[4] } end

local current = 0
if session[1] then
  if session[1] ~= owner then return { 'not yours', now } end
  if session[8] == '1' then return { 'ended', now } end
  if session[2] and session[2] ~= terms then return { 'conflict', now } end
  current = whole(session[3])
  for i = 5, 7 do -- used, held, open
    if not whole(session[i]) then return { 'corrupt', KEYS[2] } end
  end
  if not current then return { 'corrupt', KEYS[2] } end
elseif n > 1 then
  return { 'lost', now }
end
local open = lease[1] == 'open'
local granted, joined = whole(lease[2]), whole(lease[6])
if open and not (granted and joined and whole(lease[5]) and whole(lease[7]) and lease[3]) then
  return { 'corrupt', KEYS[3] }
end
local deadline = now + number[18]
local free_now = -1
local stored = account[6] and number[4] < (whole(account[6]) or 0) and account[7] or account[1] -- cap of its plan
local cap = account[1] and whole(stored)
if account[1] and not cap then return { 'corrupt', KEYS[1] } end
local credit = whole(account[4] or '0')
if not credit then return { 'corrupt', KEYS[1] } end
cap = cap and math.min(cap + credit, LIMIT)
local taken, held, settled, key_taken = whole(budget[1] or '0'), whole(budget[2] or '0'), whole(budget[3] or '0'), whole(budget[4] or '0')
if not (taken and held and settled and key_taken) then return { 'corrupt', KEYS[5] } end
if cap and (not open or lease[3] == period) then free_now = math.max(cap - taken, 0) end

local function crowded() -- a new stream beyond the key's cap of live ones; drops at most 8 dead entries
  if live and tonumber(live) > now then return false end
  for _, dead in ipairs(redis.call('ZRANGEBYSCORE', KEYS[7], '-inf', exact(now), 'LIMIT', 0, 8)) do
    redis.call('ZREM', KEYS[7], dead)
  end
  return redis.call('ZCOUNT', KEYS[7], '(' .. exact(now), '+inf') >= number[17]
end
local function renew() -- deadline and TTLs of an open lease; never shortens, never wakes a quarantined one
  local member = sid .. ':' .. ARGV[2] .. ':' .. lease[3] .. ':' .. lease[2]
  local score = redis.call('ZSCORE', KEYS[6], member)
  if score and tonumber(score) >= QUARANTINE then return false end
  deadline = math.max(deadline, tonumber(lease[5]))
  redis.call('HSET', KEYS[3], 'deadline', exact(deadline))
  redis.call('ZADD', KEYS[6], exact(deadline), member)
  redis.call('PEXPIREAT', KEYS[3], exact(deadline + number[19]))
  redis.call('PEXPIREAT', KEYS[4], exact(deadline + number[19]))
  redis.call('PEXPIREAT', KEYS[2], exact(now + number[20]))
  redis.call('ZADD', KEYS[7], exact(deadline), stream)
  return true
end

-- Replay, renewal, join.
if n <= current then
  local mine = lease[8]
  if open and mine and string.sub(mine, 1, 3) == 'in:' then
    if mine ~= 'in:' .. ARGV[10] then return { 'conflict', now } end
    if not renew() then return { 'corrupt', KEYS[3] } end
    if n < current then return { 'moved', current, now } end
    return { 'kept', n, granted, left or 0, free_now, lease[3], now, cap or 0 }
  end
  if n < current then return { 'moved', current, now } end
  if not open or mine or not left then return { 'closed', n, now } end
  if lease[4] ~= owner then return { 'not yours', now } end
  if not cap then return { 'refuse', 'account', 0, 0, now } end
  if account[2] == '1' then return { 'refuse', 'frozen', 0, 0, now } end
  if crowded() then return { 'refuse', 'streams', number[17], 0, now } end
  if not renew() then return { 'corrupt', KEYS[3] } end
  redis.call('HSET', KEYS[3], attachment, 'in:' .. ARGV[10], 'in', exact(joined + 1), 'seen', exact(whole(lease[7]) + 1))
  return { 'joined', n, granted, left, free_now, lease[3], now, cap }
end
if n > current + 1 then return { 'moved', current, now } end

-- Create.
if lease[1] then return { 'corrupt', KEYS[3] } end
if not cap then return { 'refuse', 'account', 0, 0, now } end
if account[2] == '1' then return { 'refuse', 'frozen', 0, 0, now } end
if (account[5] or '0') ~= ARGV[22] then return { 'stale plan', now } end
if now < number[4] * 1000 or now >= number[5] * 1000 then return { 'stale period', now } end
if not budget[1] and account[3] == period then return { 'lost', now } end
local used, open_leases, reserved = whole(session[5] or '0'), whole(session[7] or '0'), whole(session[6] or '0')
if session[1] and session[4] ~= '-' then
  session_cap = whole(session[4])
  if not session_cap then return { 'corrupt', KEYS[2] } end
elseif session[1] then
  session_cap = LIMIT
end
if open_leases >= 4 then return { 'refuse', 'leases', 4, 0, now } end
if crowded() then return { 'refuse', 'streams', number[17], 0, now } end
local free = math.max(cap - taken, 0)
local session_room, key_room = math.max(session_cap - used - reserved, 0), math.max(key_cap - key_taken, 0)
local room = math.min(free, session_room, key_room)
if room < least then
  if session_room < least then return { 'refuse', 'session', session_room, 0, now } end
  -- Spent, or held? What others hold may come back; what this session holds itself would not help it. Units held under
  -- the key are not counted apart, so held ones count for it as long as they may be its own.
  local others, spent = math.max(held - reserved, 0), 'budget'
  local back = settled + reserved + least <= cap
  if key_room < least then
    spent, back = 'key', others > 0 and key_taken - math.min(others, key_taken) + least <= key_cap
  end
  if back then
    local first = redis.call('ZRANGEBYSCORE', KEYS[6], '-inf', '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    return { 'refuse', 'held', room, tonumber(first[2] or 0), now }
  end
  return { 'refuse', spent, room, number[5] * 1000, now }
end
local grant = math.min(want, math.max(floor, math.floor(math.min(free, key_room) / share)), room)
local amount, until_ms = exact(grant), exact(deadline + number[19])
if account[3] ~= period then
  redis.call('HSET', KEYS[1], 'last', period)
  if account[3] then redis.call('HDEL', KEYS[1], 'credit:' .. account[3]) end
end
if budget[1] then
  redis.call('HINCRBY', KEYS[5], 'taken', amount)
  redis.call('HINCRBY', KEYS[5], 'held', amount)
else
  redis.call('HSET', KEYS[5], 'taken', amount, 'held', amount, 'settled', '0', 'rows', '0')
  redis.call('PEXPIREAT', KEYS[5], exact(number[5] * 1000 + number[21]))
end
redis.call('HINCRBY', KEYS[5], 'key:' .. owner, amount)
redis.call('HSET', KEYS[2], 'owner', owner, 'terms', terms, 'n', ARGV[2], 'cap', session[4] or ARGV[16],
  'used', exact(used), 'held', exact(reserved + grant), 'open', exact(open_leases + 1))
redis.call('PEXPIREAT', KEYS[2], exact(now + number[20]))
redis.call('HSET', KEYS[3], 'state', 'open', 'granted', amount, 'period', period, 'owner', owner, 'terms', terms,
  'deadline', exact(deadline), 'tally', '0', 'waste', '0', 'in', '1', 'seen', '1', attachment, 'in:' .. ARGV[10])
redis.call('PEXPIREAT', KEYS[3], until_ms)
redis.call('SET', KEYS[4], amount, 'PXAT', until_ms)
redis.call('ZADD', KEYS[6], exact(deadline), sid .. ':' .. ARGV[2] .. ':' .. period .. ':' .. amount)
redis.call('ZADD', KEYS[7], exact(deadline), stream)
return { 'opened', n, grant, grant, free - grant, period, now, cap }
