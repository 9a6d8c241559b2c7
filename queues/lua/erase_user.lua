-- erase_user: remove what is kept of a user's tasks that have ended: a part of one line at a time
-- KEYS[1]  prefix of the pool
-- ARGV[1]  'endings': those of the last second | 'ended': those before | 'due': those whose workers have not let go of them yet, which
--          stay there to be found again
-- ARGV[2]  where to continue; '0' = at the beginning
-- ARGV[3]  how many to look at, about
-- ARGV[4]  the user
-- ARGV[5]  of tasks that were submitted until then, ms
-- returns  {where to continue | '0' at the end, how many were removed, how many stay}
script('erase_user', 'allow-oom', function(ARGV)
  local which, user, at, removed, stopping = ARGV[1], ARGV[4], tonumber(ARGV[5]), 0, 0
  local line, behind, members, step = keys[which](), '0', nil, 1
  if which == 'endings' then
    members = call('LRANGE', line, '0', '-1')
  else
    local part = call('ZSCAN', line, ARGV[2], 'COUNT', ARGV[3])
    behind, members, step = part[1], part[2], 2
  end
  for i = 1, #members, step do
    local id, bytes = string.match(members[i], '^(%S+) ?(%d*)')
    local u, en, ik, ed = unpack(call('HMGET', keys.task(id), 'user', 'enqueued_at', 'idempotency', 'ended_at'))
    if u == user and num(en) <= at and which == 'due' then
      if ed then stopping = stopping + 1 end
    elseif u == user and num(en) <= at then
      removed = removed + 1
      if ik then release_name(id, { idempotency = ik }) end
      call('UNLINK', keys.task(id), keys.log(id), keys.request(id), keys.chain(id))
      if which == 'ended' then
        call('ZREM', line, members[i])
        call('ZREM', keys.expiries(), members[i])
        call('HINCRBY', keys.pool(), 'kept', '-' .. bytes)
      end
    end
  end
  return { behind, removed, stopping }
end)
