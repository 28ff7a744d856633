#!lua
--[[ topup: raise an account's cap for one period, once per id.
  KEYS[1]  account  hash: cap, credit:<period>
  KEYS[2]  credits  hash: id -> '<amount>:<sum of top-ups after it>'; of the period
  ARGV     1 id  2 amount, 1 .. 2^53-1  3 period  4 credits keep, ms
  returns  {'raised', sum of top-ups of the period, replay} | {'conflict'} (same id, other amount)
           {'too much', sum so far} | {'unknown'} (no such account) | {'corrupt', key} | {'bad argument', index}
  bound    6 commands, 2 keys, no loop
  keeps    an id raises the cap once; cap plus top-ups <= 2^53-1 ]]
--include amounts.lua
local amount = whole(ARGV[2])
if not amount or amount < 1 then return { 'bad argument', 2 } end
if not whole(ARGV[4]) then return { 'bad argument', 4 } end
local account = redis.pcall('HMGET', KEYS[1], 'cap', 'credit:' .. ARGV[3])
if account.err then return { 'corrupt', KEYS[1] } end
local earlier = redis.pcall('HGET', KEYS[2], ARGV[1])
if type(earlier) == 'table' then return { 'corrupt', KEYS[2] } end
if not account[1] then return { 'unknown' } end
if earlier then
  local before, sum = string.match(earlier, '^(%d+):(%d+)$')
  if not before then return { 'corrupt', KEYS[2] } end
  if before ~= ARGV[2] then return { 'conflict' } end
  return { 'raised', tonumber(sum), 1 }
end
local cap, credit = whole(account[1]), whole(account[2] or '0')
if not (cap and credit) then return { 'corrupt', KEYS[1] } end
if cap + credit + amount > LIMIT then return { 'too much', credit } end
local sum = exact(credit + amount)
redis.call('HSET', KEYS[1], 'credit:' .. ARGV[3], sum)
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2] .. ':' .. sum)
redis.call('PEXPIRE', KEYS[2], ARGV[4])
return { 'raised', credit + amount, 0 }
