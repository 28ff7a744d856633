#!lua
--[[ probe: lay out the private keys that the other scripts are probed on, each with an end from its first moment, or
  remove them.
  KEYS[1]  account  hash: one field that makes it no account
  KEYS[2]  leases   sorted set: one lease in quarantine, of nobody
  KEYS[3]  streams  sorted set: 8 streams that are over, as many as `reserve` removes at most, and one that never is, so
                    that the key outlives their removal
  KEYS[4]  session  hash: a session that has had all leases but one; so KEYS[5]
  KEYS[6]  and all behind it: what the probed scripts make; only removed here
  ARGV     1 'make' | 'clear'  2 keep, ms  3 owner  4 terms  (2 to 4 only to make)
  returns  {'made'} | {'cleared'} | {'bad argument', index}
  bound    at most 11 commands, 16 keys, one loop over 2 sessions
  keeps    no key without an end: scripts that write into these keys leave their time to live alone ]]
--include amounts.lua
if ARGV[1] ~= 'make' and ARGV[1] ~= 'clear' then return { 'bad argument', 1 } end
if #KEYS < 5 or #KEYS > 16 then return { 'bad argument', 0 } end
redis.call('DEL', unpack(KEYS))
if ARGV[1] == 'clear' then return { 'cleared' } end
local keep = ARGV[2]
if not whole(keep) then return { 'bad argument', 2 } end
redis.call('HSET', KEYS[1], 'probe', '1')
redis.call('PEXPIRE', KEYS[1], keep)
redis.call('ZADD', KEYS[2], exact(LIMIT), '-:0:-:0')
redis.call('PEXPIRE', KEYS[2], keep)
redis.call('ZADD', KEYS[3], exact(LIMIT), '0', 1, '1', 1, '2', 1, '3', 1, '4', 1, '5', 1, '6', 1, '7', 1, '8')
redis.call('PEXPIRE', KEYS[3], keep)
for i = 4, 5 do -- 2 sessions
  redis.call('HSET', KEYS[i], 'owner', ARGV[3], 'terms', ARGV[4], 'n', exact(LIMIT - 1), 'cap', '-', 'used', '0', 'held', '0', 'open', '0')
  redis.call('PEXPIRE', KEYS[i], keep)
end
return { 'made' }
