-- Payloads: the bodies of tasks, until no retry needs them. The limits of queues bound the number of small payloads. The bytes of large ones
-- are counted in total and by user. The large payloads of a user may take no more than they leave free: one user alone gets half, and other
-- users find room. One payload of each user always fits, as long as the total allows it.
local payloads = {}
local LARGE = 16384 -- bytes

local function large(bytes) return bytes >= LARGE and bytes or 0 end

local function add(user, bytes)
  if bytes == 0 then return 0, 0 end
  local total, own = call('HINCRBY', keys.pool(), 'bytes', whole(bytes)), call('HINCRBY', keys.bulk(), user, whole(bytes))
  if own <= 0 then call('HDEL', keys.bulk(), user) end
  if total <= 0 then call('HDEL', keys.pool(), 'bytes') end
  return total, own
end

-- Count payloads of these sizes as stored. Return false if there is no room for them.
function payloads.reserve(user, sizes, limit)
  local counted = 0
  for _, size in ipairs(sizes) do counted = counted + large(size) end
  local total, own = add(user, counted)
  if counted == 0 or (total <= limit and (own == counted or own <= limit - total)) then return true end
  add(user, 0 - counted)
  return false
end

-- Count `after` bytes of a user instead of `before`.
function payloads.change(user, before, after) add(user, large(after) - large(before)) end

function payloads.store(task, payload)
  records.set_payload(task, payload)
  task.payload_bytes = #payload
end

-- The payload becomes the task's request, unless there is one.
local function keep_request(task) call('SETNX', keys.request(task.id), records.payload(task)) end

-- Replace the payload of a task.
function payloads.replace(task, payload)
  if task.keep_request then keep_request(task) end
  local before = task.payload_bytes
  payloads.change(task.user, before, #payload)
  payloads.store(task, payload)
  task.input_tokens = math.max((task.input_tokens or 0) + math.floor((#payload - before) / 4), 0)
end

-- Drop the payload of a task, because no retry is possible. With `keep_request` it is kept as the task's request.
function payloads.drop(task)
  local bytes = task.payload_bytes
  if not bytes then return end
  task.payload_bytes = nil
  if task.keep_request then keep_request(task) end
  records.drop_payload(task)
  add(task.user, 0 - large(bytes))
end

return payloads
