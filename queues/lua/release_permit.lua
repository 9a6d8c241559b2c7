-- release_permit: what was let in with a permit has ended: its slot is free, and its task is completed
-- KEYS[1]  prefix of the pool
-- ARGV[1]  task id
-- ARGV[2]  epoch of the grant that the permit is of
-- ARGV[3]  fields of the terminal event, without braces
-- returns  {'ended', account of the end (endings.lua)} | {'over'} it had ended before, or its time was over | {'unused'} the permit was not used |
--          {'unknown'} task
-- All readers' replicas get the event, the caller's too: if this reply is lost, a repetition finds the task over.
script('release_permit', 'allow-oom', function(ARGV)
  local id, epoch = ARGV[1], ARGV[2]
  local t = load(id)
  if not t or t.state == 'gone' then return { 'unknown' } end
  local permit = t.epoch == epoch and permits.read(t) or nil
  if not permit then return { 'over' } end
  if not permit.used then return { t.state == 'executing' and 'unused' or 'over' } end
  if not permits.give_back(id, t, true, t.state == 'executing') then return { 'over' } end
  local outcome = { 'over' }
  if t.state == 'executing' then -- else it was cancelled while the call was under way
    end_task(id, t, 'completed', 'done', event_data(id, ARGV[3]), '', '')
    outcome = { 'ended', account_of_end(t, id) }
  end
  wake(t.model)
  wake_elsewhere(t)
  return outcome
end)
