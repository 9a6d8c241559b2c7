-- While Redis is unavailable, no replica can renew anything. Sweeps are due once a second. If one is late by more than half a second, there
-- was a gap, and everything that needs renewal is extended by the gap minus half a second. So owners have time to return, and yet each
-- sweep brings the end of what is not renewed nearer. Gaps are remembered for as long as a lease can last. A task's `gap_moved` is the end of
-- the last gap that has extended it.
local gaps = {}
local known = {} -- {when it ended, by how much it moves}, ms

local function moved(at, by, most) return math.max(at, math.min(at + by, most)) end

-- Extend the members of a set that were alive before the gap and end within the next five seconds.
local function move_all(key, from, by, lease)
  local members = call('ZRANGEBYSCORE', key, '(' .. whole(from), whole(NOW + 5000), 'WITHSCORES')
  for i = 1, #members, 2 do call('ZADD', key, whole(moved(tonumber(members[i + 1]), by, NOW + lease)), members[i]) end
end

-- Extend the offers of up to about 500 models. Return whether there are more.
local function move_offers(moving, lease)
  if not moving then return false end
  local found = call('ZSCAN', keys.offered(), moving.cursor, 'COUNT', '500')
  for i = 1, #found[2], 2 do
    local model, at = found[2][i], tonumber(found[2][i + 1])
    if at > moving.from and at <= NOW + 5000 then
      call('ZADD', keys.offered(), whole(moved(at, moving.by, NOW + lease)), model)
      move_all(keys.offers(model), moving.from, moving.by, lease)
    end
  end
  moving.cursor = found[1]
  if found[1] == '0' then call('HDEL', keys.pool(), 'moving') else call('HSET', keys.pool(), 'moving', cmsgpack.pack(moving)) end
  return found[1] ~= '0'
end

-- Check for a gap since the last sweep. `longest`: the longest time (ms) that a lease lasts. Return whether there is more to extend.
function gaps.look(lease, longest)
  local pool = keys.pool()
  local swept, packed, moving = unpack(call('HMGET', pool, 'swept', 'gaps', 'moving'))
  call('HSET', pool, 'swept', NOW_TEXT)
  moving = moving and cmsgpack.unpack(moving)
  known = {}
  for _, gap in ipairs(packed and cmsgpack.unpack(packed) or {}) do
    if gap[1] > NOW - longest then known[#known + 1] = gap end
  end
  local last, late = num(swept), swept and NOW - num(swept) or 0
  if late > 1500 then
    known[#known + 1] = { NOW, late - 500 }
    move_all(keys.replicas(), last, late - 500, lease)
    moving = { cursor = '0', from = moving and moving.from or last, by = late - 500 + (moving and moving.by or 0) }
  end
  if known[1] then call('HSET', pool, 'gaps', cmsgpack.pack(known)) elseif packed then call('HDEL', pool, 'gaps') end
  return move_offers(moving, lease)
end

-- Extend a task's lease, and its time without readers, by the gaps since they began.
function gaps.move(task, lease, grace)
  local seen, waits = task.gap_moved or 0, task.state == 'queued'
  for _, gap in ipairs(known) do
    local ended, by = gap[1], gap[2]
    if ended > seen then
      task.gap_moved = ended
      if task.linger_at and ended > task.enqueued_at then task.linger_at = moved(task.linger_at, by, ended + task.linger_ms) end
      if not waits and task.granted_at and ended > task.granted_at then
        task.lease = moved(task.lease, by, ended + (task.state == 'executing' and lease or grace))
        call('ZADD', keys.slots(task.model), 'XX', whole(task.lease), task.id)
      end
      records.save(task)
    end
  end
end

return gaps
