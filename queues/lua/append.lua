-- append: add events to the log of a running task
-- KEYS[1]  prefix of the pool
-- ARGV[1]  task id
-- ARGV[2]  epoch of the grant
-- ARGV[3]  grant token
-- ARGV[4]  sequence number of the first event
-- ARGV[5]  replica (it delivers to its own readers itself)
-- ARGV[6]  1: the events hold output, after which no retry is possible
-- ARGV[7…] type, data of each event
-- returns  {'ok'} | {'stale', state} the grant is not current: stop | {'hole', top} the log ends at `top`: refill or end.
--          Events at or below the top are success: they were appended by an earlier call whose reply was lost.
script('append', nil, function(ARGV)
  local id, epoch, seq = ARGV[1], ARGV[2], tonumber(ARGV[4])
  local key = keys.task(id)
  local t = call('HMGET', key, 'st', 'ep', 'gt', 'sq', 'rd', 'fo', 'pb')
  if t[1] ~= 'executing' or t[2] ~= epoch or t[3] ~= ARGV[3] then return { 'stale', t[1] or 'unknown' } end
  local top = num(t[4])
  if seq > top + 1 then return { 'hole', top } end
  local log = keys.log(id)
  for i = 7, #ARGV, 2 do
    if seq > top then
      local event_id = epoch .. '-' .. whole(seq)
      call('XADD', log, event_id, 'type', ARGV[i], 'data', ARGV[i + 1])
      if t[5] and t[5] ~= ARGV[5] then publish_event(t[5], id, event_id, ARGV[i], ARGV[i + 1], ARGV[5]) end
      top = seq
    end
    seq = seq + 1
  end
  if ARGV[6] == '1' and not t[6] then
    call('HSET', key, 'sq', whole(top), 'fo', NOW_TEXT)
    drop_payload(id, t[7])
  else
    call('HSET', key, 'sq', whole(top))
  end
  return { 'ok' }
end)
