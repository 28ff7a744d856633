#!lua flags=allow-oom
--[[ rebuild: write a budget anew from sums over its ledger and open leases, if they are still what was summed.
  KEYS[1]  budget  hash: taken, held, settled, rows, key:<owner>; of one period
  KEYS[2]  ledger  stream, one row per closed lease; of the same period
  KEYS[3]  leases  sorted set: open leases of the account
  ARGV     1 rows summed  2 id of the last of them, or '0-0'  3 open leases of the account when they were summed
           4 budget as it was: '-' if there was none, else <taken>:<held>:<settled>:<rows>
           5 step: 'keys' (only the pairs) or 'sums'  6 taken  7 held  8 settled  9 rows
           10 keep, ms: when the budget has no end yet  11.. pairs of owner and units, at most 64 pairs
  returns  {'written'} | {'moved'} (something opened or closed meanwhile: sum again) | {'corrupt', key} | {'bad argument', index}
  bound    7 commands, 3 keys, one loop over at most 64 pairs
  keeps    taken = held + settled; a budget that is not there comes to be in the step 'sums', so the keys come first ]]
--include amounts.lua
for _, i in ipairs({ 1, 3, 6, 7, 8, 9, 10 }) do -- 7 arguments
  if not whole(ARGV[i]) then return { 'bad argument', i } end
end
if ARGV[5] ~= 'keys' and ARGV[5] ~= 'sums' then return { 'bad argument', 5 } end
if whole(ARGV[6]) ~= whole(ARGV[7]) + whole(ARGV[8]) then return { 'bad argument', 6 } end
if #ARGV > 138 or #ARGV % 2 == 1 then return { 'bad argument', 11 } end
local budget = redis.pcall('HMGET', KEYS[1], 'taken', 'held', 'settled', 'rows')
if budget.err then return { 'corrupt', KEYS[1] } end
local rows = redis.pcall('XLEN', KEYS[2])
if type(rows) == 'table' then return { 'corrupt', KEYS[2] } end
local open = redis.pcall('ZCARD', KEYS[3])
if type(open) == 'table' then return { 'corrupt', KEYS[3] } end
local was = budget[1] and budget[1] .. ':' .. (budget[2] or '') .. ':' .. (budget[3] or '') .. ':' .. (budget[4] or '') or '-'
if was ~= ARGV[4] or rows ~= whole(ARGV[1]) or open ~= whole(ARGV[3]) then return { 'moved' } end
local behind = redis.call('XRANGE', KEYS[2], '(' .. ARGV[2], '+', 'COUNT', 1)
if #behind > 0 then return { 'moved' } end
local fields = {}
for i = 11, #ARGV, 2 do -- at most 64
  if not whole(ARGV[i + 1]) then return { 'bad argument', i + 1 } end
  fields[#fields + 1], fields[#fields + 2] = 'key:' .. ARGV[i], ARGV[i + 1]
end
if ARGV[5] == 'sums' then
  for i, name in ipairs({ 'taken', 'held', 'settled', 'rows' }) do -- 4
    fields[#fields + 1], fields[#fields + 2] = name, ARGV[5 + i]
  end
end
if #fields > 0 then redis.call('HSET', KEYS[1], unpack(fields)) end
if redis.call('PTTL', KEYS[1]) == -1 then redis.call('PEXPIRE', KEYS[1], ARGV[10]) end
return { 'written' }
