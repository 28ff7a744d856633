#!lua flags=allow-oom
--[[ settle: one attachment leaves its lease and says what it used; the last one out closes the lease.
  KEYS[1]  session  hash: owner, used, held, open
  KEYS[2]  lease n  hash: state, granted, period, owner, terms, tally, waste, in, charged, excess, a:<attachment>
  KEYS[3]  quota n  plain integer, removed at the close
  KEYS[4]  budget   hash: taken, held, settled, rows, key:<owner>; of the lease's period
  KEYS[5]  leases   sorted set: <sid>:<n>:<period>:<granted> by deadline
  KEYS[6]  ledger   stream, one row per closed lease; of the lease's period
  KEYS[7]  streams  sorted set: live streams of the key by deadline
  ARGV     1 sid  2 n  3 period  4 owner  5 attachment  6 stream, or '-' unless it was its last  7 tally  8 waste
           9 epsilon  10 tombstone keep, ms  11 ledger retention, ms  12 meta, <= 256 bytes
  returns  {'left', 0, 0, 0, replay} | {'closed', charged, returned, excess, replay} | {'reaped', charged, returned, excess, replay}
           {'overrun' | 'conflict' | 'not yours' | 'unknown'} | {'wrong period', the lease's} | {'corrupt', key} | {'bad argument', index}
  bound    at most 25 commands; 7 keys; no loop over data
  keeps    an overrun closes nothing, but leaves the lease to be charged in full;
           the first answer of an attachment is repeated until the tombstone ends, and moves nothing again;
           charged = min(sum of tallies, granted + epsilon); the excess shows in the row ]]
--include amounts.lua
--include close.lua

local sid, period, attachment, stream = ARGV[1], ARGV[3], 'a:' .. ARGV[5], ARGV[6]
local tally, waste, epsilon = whole(ARGV[7]), whole(ARGV[8]), whole(ARGV[9])
for i, value in ipairs({ tally or -1, waste or -1, epsilon or -1, whole(ARGV[10]) or -1, whole(ARGV[11]) or -1 }) do -- 5
  if value < 0 then return { 'bad argument', 6 + i } end
end
if #ARGV[12] > 256 then return { 'bad argument', 12 } end

local session = redis.pcall('HMGET', KEYS[1], 'owner', 'used', 'held', 'open', 'n')
local lease = redis.pcall('HMGET', KEYS[2], 'state', 'granted', 'period', 'owner', 'terms', 'tally', 'waste', 'in',
  'charged', 'excess', attachment)
local quota = redis.pcall('GET', KEYS[3])
local budget = redis.pcall('HMGET', KEYS[4], 'taken', 'held', 'settled', 'rows')
local queue = redis.pcall('ZCARD', KEYS[5])
local rows = redis.pcall('XLEN', KEYS[6])
local live = redis.pcall('ZCARD', KEYS[7])
for i, read in ipairs({ session, lease, quota or 0, budget, queue, rows, live }) do -- 7 keys
  if type(read) == 'table' and read.err then return { 'corrupt', KEYS[i] } end
end
if stream ~= '-' then redis.call('ZREM', KEYS[7], stream) end
local mine = lease[11]
if not lease[1] or not mine then return { 'unknown' } end
if lease[4] ~= ARGV[4] then return { 'not yours' } end
if lease[3] ~= period then return { 'wrong period', lease[3] or '' } end

local granted = whole(lease[2])
if not granted then return { 'corrupt', KEYS[2] } end
local function verdict(word, replay) -- of a closed lease, from its tombstone
  local charged, excess = whole(lease[9]), whole(lease[10])
  if not (charged and excess) then return { 'corrupt', KEYS[2] } end
  return { word, charged, math.max(granted - charged, 0), excess, replay }
end
local said = ':' .. ARGV[7] .. ':' .. ARGV[8]
if string.sub(mine, 1, 3) ~= 'in:' then -- it left before: the same answer again, or a conflict
  if mine == 'left' .. said then return { 'left', 0, 0, 0, 1 } end
  if mine == 'closed' .. said then return verdict('closed', 1) end
  return { 'conflict' }
end
if lease[1] == 'closed' then return verdict('reaped', 0) end
if tally > granted + epsilon then
  -- Refused, but not forgotten: whoever closes the lease charges at least all of it.
  redis.call('HSET', KEYS[2], 'tally', exact(math.max(whole(lease[6]) or 0, granted)))
  return { 'overrun' }
end

local joined, tallies, wastes = whole(lease[8]), whole(lease[6]), whole(lease[7])
if not (joined and tallies and wastes) or joined < 1 then return { 'corrupt', KEYS[2] } end
tallies, wastes = math.min(tallies + tally, LIMIT), math.min(wastes + waste, LIMIT)
if joined > 1 then
  redis.call('HSET', KEYS[2], 'tally', exact(tallies), 'waste', exact(wastes), 'in', exact(joined - 1), attachment, 'left' .. said)
  return { 'left', 0, 0, 0, 0 }
end

if budget[1] and not (whole(budget[1]) and whole(budget[2]) and whole(budget[3]) and whole(budget[4])) then
  return { 'corrupt', KEYS[4] }
end
if session[1] and not (whole(session[2]) and whole(session[3]) and whole(session[4])) then return { 'corrupt', KEYS[1] } end
local charged = math.min(tallies, granted + epsilon)
redis.call('HSET', KEYS[2], attachment, 'closed' .. said)
close({
  keys = { session = KEYS[1], lease = KEYS[2], quota = KEYS[3], budget = KEYS[4], leases = KEYS[5], ledger = KEYS[6] },
  member = sid .. ':' .. ARGV[2] .. ':' .. period .. ':' .. lease[2], sid = sid, n = ARGV[2], owner = lease[4], terms = lease[5],
  granted = granted, charged = charged, excess = tallies - charged, tally = tallies, waste = wastes, how = 'settled', meta = ARGV[12],
  budget_there = budget[1], session_there = session[1] and (whole(session[5]) or 0) >= tonumber(ARGV[2]), lease_there = true, keep = ARGV[10], retention = ARGV[11],
})
return { 'closed', charged, math.max(granted - charged, 0), tallies - charged, 0 }
