-- append: add events to the logs of running tasks; each task succeeds or fails by itself
-- args      replica (it delivers to its own readers itself); appends: for each task {id, epoch, token, number of its first event, true if the
--           events have output, after which no retry is possible, types of its events}
-- strings   the data of all events, in their order
-- returns   {outcomes}: for each task {'ok', its readers} | {'open', its readers}: the writer may add the next events itself (log.lua) |
--           {'stale'}: the grant is not current, stop | {'hole', top}: the log ends there, resend from there or end. Events at or below the
--           top count as success: an earlier call, whose reply was lost, appended them.
local function append(replica, args, at, id, epoch, token, seq, output, kinds)
  local task = records.load(id)
  if not task or task.state ~= 'executing' or task.epoch ~= epoch or task.token ~= token then return { 'stale' } end
  local top = log.close(task)
  if seq > top + 1 then return { 'hole', top } end
  for i, kind in ipairs(kinds) do
    if seq > top then log.add(task, epoch, kind, args[at + i], replica) end
    seq = seq + 1
  end
  if output and not task.first_output_at then
    task.first_output_at = NOW
    payloads.drop(task)
    hooks.each('output', task)
  end
  local outcome = task.first_output_at and 'open' or 'ok'
  if outcome == 'open' then log.open(task) end
  records.save(task)
  return { outcome, task.readers or '' }
end

script('append', nil, function(ask, args)
  local outcomes, at = {}, 1
  for i, one in ipairs(ask.appends) do
    outcomes[i] = append(ask.replica, args, at, unpack(one))
    at = at + #one[6]
  end
  return { outcomes = outcomes }
end)
