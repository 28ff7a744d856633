#!lua
--[[ account: create an account or change some of its fields, all at once.
  KEYS[1]  account  hash: cap, period, zone, share, frozen, plan (names the way its time is cut), and more
  ARGV     1 plan expected: its name, '-' (there must be no account), '*' (any account)
           2 second from which a new plan counts, '0' when the plan stays; it must not have come yet
           3.. pairs of field and value, 1 to 16 pairs
  returns  {'written', now} | {'moved', plan or '-', now} | {'late', now} | {'corrupt', key} | {'bad argument', index}
  bound    3 commands, 1 key, one loop over at most 16 pairs
  keeps    fields that are not named: last, credits, keys ]]
--include amounts.lua
local from = whole(ARGV[2])
if not from then return { 'bad argument', 2 } end
if #ARGV < 4 or #ARGV > 34 or #ARGV % 2 == 1 then return { 'bad argument', 3 } end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local account = redis.pcall('HMGET', KEYS[1], 'cap', 'plan')
if account.err then return { 'corrupt', KEYS[1] } end
local plan = account[1] and (account[2] or '0') or '-'
if ARGV[1] == '*' and plan == '-' or ARGV[1] ~= '*' and ARGV[1] ~= plan then return { 'moved', plan, now } end
if from > 0 and now >= from * 1000 then return { 'late', now } end
local fields = {}
for i = 3, #ARGV do fields[i - 2] = ARGV[i] end -- at most 32
redis.call('HSET', KEYS[1], unpack(fields))
return { 'written', now }
