#!lua flags=no-writes
--[[ audit: where one period's books stand; reads only.
  KEYS[1]  budget  hash: taken, held, settled, rows; of one period
  KEYS[2]  leases  sorted set: open leases of the account by deadline
  returns  {'books', taken, held, settled, drift, rows, leases, oldest deadline or 0, now}
           {'no books', now} | {'corrupt', key}
  bound    5 commands, 2 keys, no loop
  keeps    everything as it is; drift = taken - held - settled, 0 unless data was lost ]]
--include amounts.lua
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local budget = redis.pcall('HMGET', KEYS[1], 'taken', 'held', 'settled', 'rows')
if budget.err then return { 'corrupt', KEYS[1] } end
local leases = redis.pcall('ZCARD', KEYS[2])
if type(leases) == 'table' then return { 'corrupt', KEYS[2] } end
if not budget[1] then return { 'no books', now } end
local taken, held, settled, rows = whole(budget[1]), whole(budget[2]), whole(budget[3]), whole(budget[4])
if not (taken and held and settled and rows) then return { 'corrupt', KEYS[1] } end
local oldest = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
return { 'books', taken, held, settled, taken - held - settled, rows, leases, tonumber(oldest[2] or 0), now }
