-- mark_read: its caller has read the end of a task, which is kept for a short time only from now on
-- KEYS[1]  prefix of the pool
-- ARGV[1]  task id
-- returns  1 | 0 nothing to do: it asks for no such thing, or was read before
script('mark_read', 'allow-oom', function(ARGV)
  local id = ARGV[1]
  local ed, tl, ar, by, ra = unpack(call('HMGET', keys.task(id), 'ended_at', 'ttl', 'archive', 'stored_bytes', 'keep_after_read'))
  if not (ed and ra) then return 0 end
  call('HDEL', keys.task(id), 'keep_after_read')
  local keep = NOW + num(ra) - num(ed) -- from its end on
  if keep >= num(tl) then return 1 end
  call('HSET', keys.task(id), 'ttl', whole(keep)) -- while the archive does not have it, or it holds a slot: for then
  if by and not ar then shorten(id, { ended_at = ed, stored_bytes = by }, num(ra)) end
  return 1
end)
