do
-- The slot of a permit is free again; whether it held one. It is charged as one call, and for the time in which it was out and not used as
-- the calls that others could have made: who lets permits go to waste takes no more of the line than others do. An unused one counts
-- in no window.
function permits.give_back(id, t, used, completed)
  if not release(id, t) then return false end
  if not used then windows.forget(t.model, id, t.epoch) end
  local permit = permits.read(t)
  local idle_until = permit and permit.used and num(permit.used_at) or NOW
  settle(t, -1, -1, completed, false, math.max(idle_until - num(t.granted_at), 0))
  return true
end

-- End a task whose permit is out from outside, with this terminal event. A call that uses the permit continues, so its slot is taken until its
-- end is reported or its time is over. Returns the event's id.
function permits.end_out(id, t, state, kind, data, code)
  local permit = permits.read(t)
  if permit.used then return end_task(id, t, state, kind, data, code, '', nil, math.max(permit.till, NOW + 1)) end
  permits.give_back(id, t, false, false)
  local event_id = end_task(id, t, state, kind, data, code, '')
  wake(t.model)
  wake_elsewhere(t)
  return event_id
end

-- The sweep looks at a permit that is out: if its time is over it ends, with one of these ends (rest and code), `done` where it was used.
function permits.check(id, t, done, unused)
  local permit = permits.read(t)
  if permit.till > NOW then
    permits.keep(id, t.model, permit.till)
    return
  end
  permits.give_back(id, t, permit.used, permit.used)
  if permit.used then
    end_task(id, t, 'completed', 'done', event_data(id, done.rest), '', '')
  else
    end_task(id, t, 'failed', 'error', event_data(id, unused.rest), unused.code, '')
  end
end
end
