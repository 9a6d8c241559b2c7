-- Signed tokens whose uses are limited. A task that is one use names it in `token_use`: {how many uses there may be, for how long they are
-- remembered, ms, the name under which they are counted}.
local tokens = {}

hooks.attach('admit', 'token_use', function(task)
  local most = task.token_use[1]
  return num(call('GET', keys.uses(task.token_use[3]))) >= most and { rejected = 'used_up', limit = most } or nil
end)

hooks.attach('accept', 'token_use', function(task)
  local _, ms, name = unpack(task.token_use)
  local key = keys.uses(name)
  call('INCR', key)
  if call('PTTL', key) < ms then call('PEXPIRE', key, whole(ms)) end
end)

return tokens
