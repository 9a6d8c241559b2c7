-- Records of tasks. A record has two parts: `spec`, which the gateway wrote when it submitted the task, and `run`, which the scripts
-- write. `records.load` returns both as one table: a field of `run` hides the field of `spec`, and the value false removes it.
local records = {}
local loaded, changed, new, payload = table_of_script(), table_of_script(), table_of_script(), table_of_script()
local begun = table_of_script() -- ids of records that this call has begun
local stored = packed_tables() -- of tasks that have not ended and whose records are small
local SMALL = 8192 -- bytes

function records.begin()
  records.extras = false -- whether a task or a model that this script has read uses a feature
end

-- Forget the records that a call has begun and does not store, because it rejected the task or failed.
function records.next_call(ok)
  for i, id in ipairs(begun) do
    if not (ok and new[id]) then loaded[id], changed[id], new[id], payload[id] = nil, nil, nil, nil end
    begun[i] = nil
  end
end

local function with_spec(run, id, spec)
  local fixed = spec and cmsgpack.unpack(spec) or {}
  fixed.id, fixed.spec_text = id, spec
  if fixed.extras or run.extras then records.extras = true end
  return setmetatable(run, { __index = fixed })
end

-- Return the record of a task; nil if there is none.
function records.load(id)
  local task = loaded[id]
  if task == nil then
    local key = keys.task(id)
    local parts = call('HMGET', key, 'run', 'spec')
    task = parts[1] and (stored.take(key, parts[1]) or with_spec(cmsgpack.unpack(parts[1]), id, parts[2]))
    loaded[id] = task
    if task and task.extras then records.extras = true end
  end
  return task or nil
end

-- Return the record of a task that is not stored yet.
function records.new(id, spec)
  local task = with_spec({}, id, spec)
  loaded[id] = task
  begun[#begun + 1] = id
  return task
end

-- Write a record when the script ends.
function records.save(task) changed[task.id] = task end

-- Return the `run` part of a record, packed as it will be stored. The record must not change afterwards.
function records.packed(task)
  local packed = cmsgpack.pack(task)
  changed[task.id] = packed
  return packed
end

-- Write a new record.
function records.create(task)
  changed[task.id], new[task.id] = task, task.spec_text
end

-- Store the payload of a task with its record.
function records.set_payload(task, bytes)
  payload[task.id] = bytes
  if not changed[task.id] then records.save(task) end
end

-- Return the payload of a task.
function records.payload(task) return payload[task.id] or call('HGET', keys.task(task.id), 'payload') end

-- Remove the payload of a task. An empty one in its place costs no command of its own.
function records.drop_payload(task)
  if new[task.id] then payload[task.id] = nil else records.set_payload(task, '') end
end

-- Remove all keys of ended tasks.
function records.remove(...)
  local names = {}
  for _, id in ipairs({ ... }) do
    if loaded[id] then loaded[id], changed[id] = false, nil end
    for _, key in ipairs({ 'task', 'log', 'request', 'chain' }) do names[#names + 1] = keys[key](id) end
  end
  call('UNLINK', unpack(names))
end

function records.flush()
  for id, task in pairs(changed) do
    local key, run, body = keys.task(id), type(task) == 'string' and task or cmsgpack.pack(task), payload[id]
    if new[id] then
      call('HSET', key, 'spec', new[id], 'run', run, 'payload', body or '')
    elseif body then
      call('HSET', key, 'run', run, 'payload', body)
    else
      call('HSET', key, 'run', run)
    end
    task = loaded[id]
    if not task.ended_at and #run + #(task.spec_text or '') < SMALL then stored.put(key, run, task) end
  end
end

unit_of_work[#unit_of_work + 1] = records
return records
