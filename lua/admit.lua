#!lua flags=allow-oom
--[[ admit: charge one chunk to one envelope.
  KEYS[1]  quota key: units left in the envelope; made by reserve, removed by settle and reap
  ARGV[1]  cost, 1 .. 2^53-1, plain decimal digits; passed on to DECRBY as the string it came as
  returns  left after, a plain number: granted | {'refuse', left} | {'lapse', 0} | {'corrupt', 0} | {'bad cost', 0}
  bound    2 commands, 1 key, no loop; the same whatever is stored
  keeps    left >= 0; the key's TTL; never creates the key ]]
local left, cost = redis.call('GET', KEYS[1]), ARGV[1]
if not left then return { 'lapse', 0 } end
local have, paid, after = tonumber(left), tonumber(cost), nil
if have and paid and paid >= 1 and have >= paid and have <= 9007199254740991 then
  -- DECRBY takes plain digits only, on both sides, and refuses all else that `tonumber` takes (0x10, 1e3, 7.0, blanks).
  after = redis.pcall('DECRBY', KEYS[1], cost)
  if type(after) == 'number' then return after end
end
if not string.find(cost, '^[1-9]%d*$') or #cost > 16 or paid > 9007199254740991 then return { 'bad cost', 0 } end
local plain = left == '0' or string.find(left, '^[1-9]%d*$') and #left < 17
if plain and after then return after end -- not for its digits: the error itself, as where DECRBY is not allowed
if not plain or have > 9007199254740991 or have >= paid then return { 'corrupt', 0 } end
return { 'refuse', have }
