-- follow_task: begin to read a task here: its record and its place; from now on its events are published to this replica's channel.
-- What the log holds until now, up to the record's `top_seq`, is read by pages.
-- KEYS[1]  prefix of the pool
-- ARGV[1]  task id
-- ARGV[2]  replica
-- ARGV[3]  1: the reader keeps the task alive (its linger is renewed)
-- ARGV[4]  1: only for its owner: key ARGV[5], user ARGV[6]. For anybody else it is unknown, and nothing is registered or renewed
-- returns  {place, now ms, record} | {} unknown; the record is not changed once the task has ended
script('follow_task', 'allow-oom', function(ARGV)
  local id, replica = ARGV[1], ARGV[2]
  local t = load(id)
  if not t or t.state == 'gone' then return {} end
  if ARGV[4] == '1' and ((t.key_id or '') ~= ARGV[5] or t.user ~= ARGV[6]) then return {} end
  local where = NOWHERE
  if t.state == 'queued' or t.state == 'executing' then
    local readers = t.readers or ''
    if not string.find(',' .. readers .. ',', ',' .. replica .. ',', 1, true) then
      t.readers = readers == '' and replica or readers .. ',' .. replica
      call('HSET', keys.task(id), 'readers', t.readers)
    end
    if ARGV[3] == '1' and t.linger then
      t.linger_at = whole(NOW + num(t.linger)) -- text, as a record's fields are
      call('HSET', keys.task(id), 'linger_at', t.linger_at)
      local instant = t.state == 'queued' and wait_instant(t) or run_instant(t, num(call('ZSCORE', keys.slots(t.model), id)))
      call('ZADD', keys.due(), instant, id)
    end
    if t.state == 'queued' then where = place(id, t) end
  end
  local record = {}
  for field, value in pairs(t) do
    record[#record + 1] = field
    record[#record + 1] = value
  end
  return { where, NOW, record }
end)
