-- Payloads: the bodies of tasks, until no retry needs them. Small ones are bounded by their number; the bytes of large ones are counted,
-- over all and by user. A user's large bodies may take no more than they leave free, so that one user alone has half, and the next ones find
-- room; one body of each user always fits.
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

-- Count bodies of these sizes among those that are stored. Return false if there is no room for them.
function payloads.reserve(user, sizes, limit)
  local counted = 0
  for _, size in ipairs(sizes) do counted = counted + large(size) end
  local total, own = add(user, counted)
  if counted == 0 or (total <= limit and (own == counted or own <= limit - total)) then return true end
  add(user, 0 - counted)
  return false
end

-- Count that `after` bytes are stored for a user instead of `before`.
function payloads.change(user, before, after) add(user, large(after) - large(before)) end

function payloads.store(task, payload)
  call('SET', keys.payload(task.id), payload)
  task.payload_bytes = #payload
end

-- Put another payload in the place of the one that a task has.
function payloads.replace(task, payload)
  if task.keep_request then call('RENAMENX', keys.payload(task.id), keys.request(task.id)) end
  local before = task.payload_bytes
  payloads.change(task.user, before, #payload)
  payloads.store(task, payload)
  task.input_tokens = math.max((task.input_tokens or 0) + math.floor((#payload - before) / 4), 0)
end

-- Drop the payload of a task: no retry is possible. One that is to be kept (`keep_request`) becomes its request, unless it has one.
function payloads.drop(task)
  local bytes = task.payload_bytes
  if not bytes then return end
  task.payload_bytes = nil
  if task.keep_request then call('RENAMENX', keys.payload(task.id), keys.request(task.id)) end
  call('DEL', keys.payload(task.id))
  add(task.user, 0 - large(bytes))
end

return payloads
