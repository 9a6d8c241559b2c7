-- Models and queues. A model's hash has its `settings`, written by configure, its `state`, written by every other script (virtual times, lanes,
-- means), and a field for each user of a lane (lanes.lua). `models.get` gives settings and state as one table. The settings of a queue are in
-- its own hash, with the number of its waiting tasks.
--
-- Settings are read at most once a second: the library keeps them in memory. Scripts that change settings update this cache.
local models = {}
local loaded, changed, fields = table_of_script(), table_of_script(), table_of_script()
local waiting, more_waiting = table_of_script(), table_of_script() -- of queues: tasks, as read; how many this script has added
local pools, settings = {}, nil -- settings by pool; of this pool: since when (us), of models (m) and queues (q)
local stored = packed_tables()

function models.begin()
  settings = pools[P]
  if not settings or US - settings.since >= 1000000 or US < settings.since then models.forget_settings() end
end

-- The stored form of a lane: seven numbers; its departures (their number, the ms that they took, the time of the last); 1 if it was passed over.
local LANE = '<ddddddddddd'

local function pack_lane(lane)
  local gone = lane.gone
  return struct.pack(LANE, lane.tag, lane.v, lane.lifts, lane.charged, lane.waiting, lane.users, lane.running, gone[1], gone[2], gone[3],
    lane.skipped and 1 or 0)
end

local function unpack_lane(packed)
  local tag, v, lifts, charged, waiting, users, running, departures, ms, last, skipped = struct.unpack(LANE, packed)
  return { tag = tag, v = v, lifts = lifts, charged = charged, waiting = waiting, users = users, running = running,
    gone = { departures, ms, last }, skipped = skipped == 1 }
end

function models.flush()
  for name, model in pairs(changed) do
    local key, open = keys.model(name), model.open
    for queue, lane in pairs(open) do
      if lane.changes then model.lanes[queue], lane.changes = pack_lane(lane), nil end
    end
    model.open = nil
    local state = cmsgpack.pack(model)
    model.open = open
    call('HSET', key, 'state', state, unpack(fields[name] or {}))
    stored.put(key, state, model)
  end
  for queue, by in pairs(more_waiting) do
    if by ~= 0 then call('HINCRBY', keys.queue(queue), 'waiting', whole(by)) end
  end
end

-- Write another field of a model's hash when the script ends.
function models.write(name, field, value)
  local more = fields[name] or {}
  more[#more + 1], more[#more + 2] = field, value
  fields[name] = more
  models.save(name)
end

-- Settings for which 0 is a value. For all others, 0 means that it is not set.
models.zero_counts = {}

-- Return the settings that are in effect.
function models.in_effect(values)
  local held = {}
  for setting, value in pairs(values) do
    if value ~= 0 or models.zero_counts[setting] then held[setting] = value end
  end
  return held
end

local function keep_settings(kind, name, packed)
  local of = { __index = packed and models.in_effect(cmsgpack.unpack(packed)) or {} }
  settings[kind][name] = of
  return of
end

-- Empty the cache: the store may have been emptied, or a second is over.
function models.forget_settings()
  settings = { since = US, m = {}, q = {} }
  pools[P] = settings
end

-- Return a model: its settings and its state in one table. `lanes`: all lanes by queue, packed; `open`: lanes that were unpacked; `users`:
-- number of flows in line. `field`: another field of its hash, whose value is returned too.
function models.get(name, field)
  local model = loaded[name]
  if model then return model, field and call('HGET', keys.model(name), field) end
  local key, state, value, packed = keys.model(name), nil, nil, nil
  local of = settings.m[name]
  if not of then
    state, value, packed = unpack(call('HMGET', key, 'state', field or 'state', 'settings'))
    of = keep_settings('m', name, packed)
  elseif field then
    state, value = unpack(call('HMGET', key, 'state', field))
  else
    state = call('HGET', key, 'state')
  end
  model = stored.take(key, state) or state and cmsgpack.unpack(state) or { lanes = {}, virtual_time = 0, users = 0, seen_at = 0, used_at = 0 }
  model.open = model.open or {}
  loaded[name] = setmetatable(model, of)
  if model.extras then records.extras = true end
  return model, value
end

-- Mark a model that uses a feature for a reason other than its settings.
function models.use_extras(model) model.extras, records.extras = true, true end

-- Write a model when the script ends.
function models.save(name) changed[name] = loaded[name] end

-- Return the lane of a queue of a model, which the caller may change.
function models.lane(model, queue)
  local lane = model.open[queue]
  if not lane then
    local packed = model.lanes[queue]
    lane = packed and unpack_lane(packed)
      or { tag = 0, v = 0, lifts = 0, charged = 0, waiting = 0, users = 0, running = 0, gone = { 0, 0, NOW } }
    model.open[queue] = lane
  end
  lane.changes = true
  return lane
end

-- Return all lanes of a model, by queue, to read them.
function models.lanes(model)
  local open = model.open
  for queue, packed in pairs(model.lanes) do open[queue] = open[queue] or unpack_lane(packed) end
  return open
end

-- Record the use of a model, at most once a minute, so that the sweep does not remove it.
function models.touch(name, model)
  if model.seen_at >= NOW - 60000 then return end
  model.seen_at = NOW
  call('ZADD', keys.models(), NOW_TEXT, name)
  models.save(name)
end

-- Remove a model.
function models.remove(name)
  local key = keys.model(name)
  call('DEL', key)
  call('ZREM', keys.models(), name)
  loaded[name], changed[name], settings.m[name] = nil, nil, nil
end

-- Return how many tasks wait in a queue, over all models.
function models.waiting(queue)
  waiting[queue] = waiting[queue] or num(call('HGET', keys.queue(queue), 'waiting')) + (more_waiting[queue] or 0)
  return waiting[queue]
end

-- Count tasks that enter or leave a queue.
function models.count_waiting(queue, by)
  more_waiting[queue] = (more_waiting[queue] or 0) + by
  if waiting[queue] then waiting[queue] = waiting[queue] + by end
end

-- Return the settings of a queue.
function models.queue(name)
  local of = settings.q[name] or keep_settings('q', name, call('HGET', keys.queue(name), 'settings'))
  return of.__index
end

-- Store the settings of a model ('m') or a queue ('q').
function models.write_settings(kind, name, values)
  local key = kind == 'm' and keys.model(name) or keys.queue(name)
  if next(values) then call('HSET', key, 'settings', cmsgpack.pack(values)) else call('HDEL', key, 'settings') end
  local of = keep_settings(kind, name, next(values) and cmsgpack.pack(values))
  if kind == 'm' and loaded[name] then setmetatable(loaded[name], of) end
end

unit_of_work[#unit_of_work + 1] = models
return models
