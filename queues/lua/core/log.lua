-- The log of a task: a stream of its events, which are published to the replicas with readers.
--
-- After the first output of an attempt its writer may add events itself (XADD), without a script: the next number of the attempt's epoch is
-- accepted as long as no newer event is in the log, and every script that ends the attempt adds an event with a newer epoch. Meanwhile the
-- record has no `top` and no `log_bytes`.
local log = {}
local MAX_PUBLISHED = 65536 -- bytes of an event that is published; scheduler.py has the same

-- Return the number of the last event of a task's log.
function log.top(task)
  if task.top or not task.first_output_at then return task.top or 0 end
  local last = call('XREVRANGE', keys.log(task.id), '+', '-', 'COUNT', '1')[1]
  return last and tonumber(string.match(last[1], '%d+$')) or 0
end

-- The writer of the attempt may add events itself from now on.
function log.open(task) task.top, task.log_bytes = nil, nil end

-- The attempt ends. Return the number of the log's last event.
function log.close(task)
  task.top = log.top(task)
  return task.top
end

-- Return the size of a log, estimated in bytes.
function log.size(task) return task.log_bytes or num(call('MEMORY', 'USAGE', keys.log(task.id))) end

-- Publish an event to the replicas that read a task, except to `except`. Of a large event only the id is published.
local function publish_event(task, event_id, kind, data, except)
  local readers, message = task.readers, nil
  if not readers or readers == '' or readers == except then return end
  for replica in string.gmatch(readers, '[^,]+') do
    if replica ~= except then
      if not message and #data > MAX_PUBLISHED then
        message = 'event_id\n' .. task.id .. '\n' .. event_id
      elseif not message then
        message = 'event\n' .. task.id .. '\n' .. event_id .. '\n' .. kind .. '\n' .. data
      end
      publish(replica, message)
    end
  end
end

-- Add an event with the next number, and publish it to the readers, except to the replica `except`. Return its id.
function log.add(task, epoch, kind, data, except)
  local top = log.top(task)
  if top == 0 then task.log_bytes = 0 end
  task.top = top + 1
  local event_id = whole(epoch) .. '-' .. whole(task.top)
  call('XADD', keys.log(task.id), event_id, 'type', kind, 'data', data)
  if task.log_bytes then task.log_bytes = task.log_bytes + #data + 64 end
  publish_event(task, event_id, kind, data, except)
  return event_id
end

return log
