-- The sweep's work once a second: repeat wake-ups that may have been lost, and remove what is no longer used.
local tidying = {}
local GONE_MS = 60000 -- replicas and offers that expired this long ago are removed
local IDLE_MS = 3600000 -- models without use for this long are removed

-- Wake every replica that could start a task.
function tidying.wake_all()
  for _, name in ipairs(call('ZRANGE', keys.backlog(), '0', '999')) do
    hooks.first('starts', models.get(name), name)
    if eligible.turn(name) then
      for _, offered in ipairs(offered_as(name)) do
        for _, replica in ipairs(call('ZRANGEBYSCORE', keys.offers(offered), '(' .. NOW_TEXT, '+inf', 'LIMIT', '0', '64')) do
          publish(replica, 'wake_all\n' .. name)
        end
      end
    end
  end
end

function tidying.forget_replicas()
  local gone = whole(NOW - GONE_MS)
  for _, replica in ipairs(call('ZRANGEBYSCORE', keys.replicas(), '-inf', gone, 'LIMIT', '0', '4')) do
    for _, name in ipairs(call('ZRANGE', keys.offered(), '0', '999')) do call('ZREM', keys.idle(name), replica) end
    call('HDEL', keys.versions(), replica)
    call('HDEL', keys.hosts(), replica)
    call('ZREM', keys.replicas(), replica)
  end
  for _, name in ipairs(call('ZRANGEBYSCORE', keys.offered(), '-inf', gone, 'LIMIT', '0', '1000')) do
    call('DEL', keys.offers(name), keys.idle(name), keys.serving(name))
    call('ZREM', keys.offered(), name)
  end
end

-- If the line '*' has no worker any more, move its tasks to the models that they requested, if workers offer these.
function tidying.move_stranded()
  if models.get('*').users == 0 or waking.is_offered('*') then return end
  local part = call('ZSCAN', keys.due(), call('HGET', keys.pool(), 'stranded') or '0', 'COUNT', '100')
  call('HSET', keys.pool(), 'stranded', part[1])
  for i = 1, #part[2], 2 do
    local task = records.load(part[2][i])
    local asked = task and task.state == 'queued' and task.model == '*' and task.requested_model
    if asked and waking.is_offered(asked) then
      lanes.dequeue(task)
      task.model, task.requested_model = asked, nil
      models.touch(asked, models.get(asked))
      lanes.enqueue(task)
      records.save(task)
      waking.wake(asked)
    end
  end
end

-- Check a part of the models: remove idle ones, and users without tasks in the last hour.
function tidying.forget_models()
  local found = call('ZSCAN', keys.models(), call('HGET', keys.pool(), 'tidied') or '0', 'COUNT', '100')
  call('HSET', keys.pool(), 'tidied', found[1])
  for i = 1, #found[2], 2 do
    local name, used_at = found[2][i], tonumber(found[2][i + 1])
    local model = models.get(name)
    local cursor = lanes.tidy(name, model.cursor or '0')
    model.cursor = cursor ~= '0' and cursor or nil
    models.save(name)
    local idle = math.max(used_at, model.used_at) <= NOW - IDLE_MS
    if idle and (model.users > 0 or slots.taken(name) > 0) then
      call('ZADD', keys.models(), NOW_TEXT, name)
    elseif idle and not model.fixed and not model.upstreams then
      for queue in pairs(models.lanes(model)) do call('DEL', keys.parked(queue, name)) end
      models.remove(name)
    end
  end
end

return tidying
