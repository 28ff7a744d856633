#!lua flags=allow-oom
--[[ admit: charge one chunk to one envelope.
  KEYS[1]  quota key: units left in the envelope; made by reserve, removed by settle and reap
  ARGV[1]  cost, 1 .. 2^53-1, plain decimal digits; passed on to DECRBY as the string it came as
  returns  {'grant', left after} | {'refuse', left} | {'lapse', 0} | {'corrupt', 0} | {'bad cost', 0}
  bound    2 commands, 1 key, no loop; the same whatever is stored
  keeps    left >= 0; the key's TTL; never creates the key ]]
local left, cost = redis.call('GET', KEYS[1]), ARGV[1]
if not left then return { 'lapse', 0 } end
local paid = string.find(cost, '^[1-9]%d*$') and #cost < 17 and tonumber(cost)
if not paid or paid > 9007199254740991 then return { 'bad cost', 0 } end
local have = (left == '0' or string.find(left, '^[1-9]%d*$')) and #left < 17 and tonumber(left)
if not have or have > 9007199254740991 then return { 'corrupt', 0 } end
if have < paid then return { 'refuse', have } end
return { 'grant', redis.call('DECRBY', KEYS[1], cost) }
