-- Permits: the right to call an endpoint oneself, once, within a time. A task of type `permit` waits in its endpoint's line like any
-- other. No worker runs it: any replica takes it (as the worker HOLDER), gives a permit out (issue_permit.lua) and forgets it. From then on
-- the store alone holds it, and no replica's death changes that: not used in time it fails, and its slot is free; used (use_permit.lua) it
-- keeps its slot until its end is reported (release_permit.lua) or its time is over.
-- Its request goes from the check through the proxy to the endpoint, out of sight: it has arrived when its end is reported, and
-- is taken to have come after TRANSIT us.
local permits = { HOLDER = 'permits', TRANSIT = 30000 }
do
-- Is a task of this model and type one for a permit?
function permits.is(m, ty) return ty == 'permit' and is_reserved(m) end

-- Does a line of a model, the first where none is named, begin with such a task?
function permits.is_next(m, q)
  if not is_reserved(m) then return false end
  q = q or call('ZRANGE', keys.lanes(m), '0', '0')[1]
  local u = q and call('ZRANGE', keys.flows(q, m), '0', '0')[1]
  local id = u and call('ZRANGE', keys.flow(q, m, u), '0', '0')[1]
  return id ~= nil and permits.is(m, call('HGET', keys.task(id), 'type'))
end

-- Have a replica take the permits of a model: any that lives, as each gives out as many as it is granted.
function permits.wake(m)
  local alive = call('ZRANGEBYSCORE', keys.replicas(), '(' .. NOW_TEXT, '+inf', 'LIMIT', '0', '64')
  for i = 1, #alive do
    if publish(alive[(US + i) % #alive + 1], 'permit\n' .. m) > 0 then return end
  end
end

-- A permit that is out, as the record keeps it (keys.py): until when it may be used or, once it is, holds its slot; how long that
-- is, ms; when it was used (0: not yet), and by which call. nil: none is.
function permits.read(t)
  local till, unused_ms, used_ms, used_at, nonce = string.match(t.permit or '', '^(%d+) (%d+) (%d+) (%d+) (%S*)$')
  if not till then return nil end
  return { till = till + 0, unused_ms = unused_ms + 0, used_ms = used_ms + 0, used_at = used_at, nonce = nonce, used = used_at ~= '0' }
end

-- The same, as text.
function permits.text(permit)
  return table.concat({ whole(permit.till), whole(permit.unused_ms), whole(permit.used_ms), permit.used_at, permit.nonce }, ' ')
end

-- The slot of a permit is taken until then, and then the sweep looks at it.
function permits.keep(id, m, till)
  call('ZADD', keys.slots(m), whole(till), id)
  call('ZADD', keys.due(), whole(till), id)
end
end
