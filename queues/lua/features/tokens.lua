-- Signed tokens with a limited number of uses. A task that uses one has `token_use`: {number of uses allowed, how long they are counted (ms), the
-- name under which they are counted}.
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
