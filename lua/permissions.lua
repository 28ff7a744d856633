#!lua flags=no-writes
--[[ permissions: which commands our user may not run; runs none of them.
  KEYS[1]  a key of ours; nothing is ever stored there
  ARGV     names of commands, at most 64
  returns  the names that may not run on that key, or 'bad argument'
  bound    0 commands; one loop, a look-up for each name
  keeps    everything ]]
if #ARGV > 64 then return redis.error_reply('bad argument') end
local missing = {}
for i = 1, #ARGV do
  -- Any arguments will do, as long as those that name a key name one of ours.
  if not redis.acl_check_cmd(ARGV[i], KEYS[1], KEYS[1], KEYS[1]) then missing[#missing + 1] = ARGV[i] end
end
return missing
