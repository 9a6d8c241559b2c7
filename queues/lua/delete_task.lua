-- delete_task: delete what is kept of a task: immediately if it has ended and holds no slot, of
-- another one as soon as it does. What its idempotency key names goes with it
-- KEYS[1]  prefix of the pool
-- ARGV[1]  task id
-- returns  1 gone | 0 it goes when its slot is free, or when it ends | -1 it is not known
script('delete_task', 'allow-oom', function(ARGV)
  local id = ARGV[1]
  local ed, by, ik = unpack(call('HMGET', keys.task(id), 'ended_at', 'stored_bytes', 'idempotency'))
  if call('EXISTS', keys.task(id)) == 0 then return -1 end
  call('HDEL', keys.task(id), 'archive', 'idempotency')
  if ik then release_name(id, { idempotency = ik }) end
  if not ed or call('PTTL', keys.task(id)) < 0 then
    call('HSET', keys.task(id), 'ttl', '1000')
    return 0
  end
  if by then shorten(id, { ended_at = ed, stored_bytes = by }, 0) end -- what it was counted as goes with it
  call('UNLINK', keys.task(id), keys.log(id), keys.request(id), keys.chain(id))
  return 1
end)
