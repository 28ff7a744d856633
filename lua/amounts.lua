--[[ amounts: how a script reads and writes amounts; put into scripts where they say `--include amounts.lua`.
  An amount is '0' or plain decimal digits without a leading zero, at most 2^53-1: `tonumber` alone would also take
  0x10, 1e3, nan and blanks, and beyond 2^53 a Lua number is not exact.
  bound    no command, no loop ]]
local LIMIT = 9007199254740991
local function whole(text) -- the number, or nil
  if text == '0' then return 0 end
  if type(text) ~= 'string' or #text > 16 or not string.find(text, '^[1-9]%d*$') then return nil end
  local value = tonumber(text)
  return value <= LIMIT and value or nil
end
local function exact(value) -- plain digits; `+ 0` turns -0 into 0
  return string.format('%.0f', value + 0)
end
