-- measure_load: estimate how long new tasks of a model wait
-- args      model
-- returns   {stopped: why it starts nothing: 'paused', 'cooldown', 'no_worker', 'breaker_open', 'throttled' or ''; wait_ms: the wait, absent: too
--           little is known}
-- The wait is the time until all waiting tasks have begun, at the pace at which tasks leave now (Little's law), over all lanes that can
-- start tasks, because the next task can enter any of them.
script('measure_load', 'no-writes', function(ask)
  local name, model, stopped = ask.model, models.get(ask.model), ''
  local at, why = hooks.first('opens', model, name)
  if model.paused then stopped = 'paused'
  elseif (model.cooldown_until or 0) > NOW or why == 'cooldown' then stopped = 'cooldown'
  elseif not waking.is_offered(name) then stopped = 'no_worker'
  elseif at then stopped = why and 'breaker_open' or 'throttled' end
  local waiting, pace, unknown = 0, 0, false
  for queue, lane in pairs(models.lanes(model)) do
    if lane.users > 0 and not placing.blocked_by(name, queue) then
      if placing.is_learned(model, lane) then
        waiting = waiting + lane.waiting
        pace = pace + 1 / math.max((placing.interval(name, queue, true)), 0.001)
      else
        unknown = true
      end
    end
  end
  if pace == 0 and unknown then return { stopped = stopped } end
  return { stopped = stopped, wait_ms = pace > 0 and math.ceil(waiting / pace) or 0 }
end)
