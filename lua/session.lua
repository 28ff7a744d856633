#!lua
--[[ session: make a session before its first stream, give it another cap, or end it.
  KEYS[1]  session  hash: owner, cap, used, held, open, ended
  ARGV     1 'make' | 'cap' | 'end'  2 owner (make)  3 cap or '-' (make, cap)  4 session keep, ms (make)
  returns  {'made', replay} | {'capped', used + held} | {'ended', replay}
           {'exists'} (make, with another cap or owner) | {'unknown'} (cap, end) | {'corrupt', key} | {'bad argument', index}
  bound    3 commands, 1 key, no loop
  keeps    what is used and held; a session that is made has no terms yet: its first stream brings them ]]
--include amounts.lua
local what, owner, cap = ARGV[1], ARGV[2], ARGV[3]
if what ~= 'make' and what ~= 'cap' and what ~= 'end' then return { 'bad argument', 1 } end
if what ~= 'end' and cap ~= '-' and not whole(cap) then return { 'bad argument', 3 } end
if what == 'make' and not whole(ARGV[4]) then return { 'bad argument', 4 } end
local session = redis.pcall('HMGET', KEYS[1], 'owner', 'cap', 'used', 'held', 'ended')
if session.err then return { 'corrupt', KEYS[1] } end
if what == 'make' then
  if session[1] then
    if session[1] == owner and session[2] == cap then return { 'made', 1 } end
    return { 'exists' }
  end
  redis.call('HSET', KEYS[1], 'owner', owner, 'n', '0', 'cap', cap, 'used', '0', 'held', '0', 'open', '0')
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
  return { 'made', 0 }
end
if not session[1] then return { 'unknown' } end
if what == 'end' then
  if session[5] == '1' then return { 'ended', 1 } end
  redis.call('HSET', KEYS[1], 'ended', '1')
  return { 'ended', 0 }
end
local used, held = whole(session[3]), whole(session[4])
if not (used and held) then return { 'corrupt', KEYS[1] } end
redis.call('HSET', KEYS[1], 'cap', cap)
return { 'capped', used + held }
