-- Records and logs of ended tasks until they expire, and a limit for their bytes. The sweep removes tasks that have expired. Above the limit it
-- removes those that ended first, so that tasks with a long retention do not displace others.
--
-- Ended tasks are in lines by retention time; each line has up to twice the retention of the line before. So in each line, tasks
-- expire roughly in the order in which they ended.
local retention = {}
local added = table_of_script() -- `bytes` that this script keeps
local LINES = 24 -- of 1 s to half a year
local OVERHEAD = 1024 -- estimated bytes of a record and its entries in lines
local LEAST_LOG = 4096 -- bytes that Redis reserves for a log, however short it is

local function entry_of(task) return task.id .. ' ' .. whole(task.kept_bytes) end

local function read_entry(entry) return string.match(entry, '^(%S+) (%d+)$') end

function retention.flush()
  if added.bytes then call('HINCRBY', keys.pool(), 'kept', whole(added.bytes)) end
end

-- Return the lines of ended tasks.
function retention.lines()
  local lines = {}
  for i = 0, LINES do lines[i + 1] = keys.expiries(i) end
  return lines
end

-- Keep an ended task for `ms` from now.
function retention.keep(task, ms)
  if task.kept_bytes then
    call('ZREM', keys.expiries(task.kept_in), entry_of(task))
  else
    task.kept_bytes = math.max(log.size(task), LEAST_LOG) + (task.more_bytes or 0) + #task.spec_text + OVERHEAD
    task.log_bytes = nil
    added.bytes = (added.bytes or 0) + task.kept_bytes
  end
  ms = math.max(ms, 1000)
  task.expires_at = NOW + ms
  task.kept_in = math.min(select(2, math.frexp(ms / 1000)), LINES)
  call('ZADD', keys.expiries(task.kept_in), whole(task.expires_at), entry_of(task))
end

-- Keep an ended task for `ms`, unless it expires before.
function retention.shorten(task, ms)
  if task.kept_bytes and task.expires_at > NOW + ms then retention.keep(task, ms) end
  records.save(task)
end

local function remove(line, entries)
  if not entries[1] then return 0 end
  local ids, bytes = {}, 0
  for i, entry in ipairs(entries) do
    local id, size = read_entry(entry)
    ids[i], bytes = id, bytes + size
  end
  records.remove(unpack(ids))
  call('ZREM', line, unpack(entries))
  call('HINCRBY', keys.pool(), 'kept', whole(0 - bytes))
  return bytes
end

-- Remove an ended task.
function retention.remove(task)
  if task.kept_bytes then remove(keys.expiries(task.kept_in), { entry_of(task) }) else records.remove(task.id) end
end

-- Remove up to `most` of the tasks that ended first (approximately), while there is an excess (bytes). Return their number and the remaining
-- excess.
local function remove_first(excess, most)
  local first_line, first_ended
  for i, line in ipairs(retention.lines()) do
    local expires = call('ZRANGE', line, '0', '0', 'WITHSCORES')[2]
    local ended = expires and expires - 1000 * 2 ^ (i - 1)
    if ended and (not first_ended or ended < first_ended) then first_line, first_ended = line, ended end
  end
  local entries = {}
  for _, entry in ipairs(first_line and call('ZRANGE', first_line, '0', whole(most - 1)) or {}) do
    if excess <= 0 then break end
    local _, size = read_entry(entry)
    entries[#entries + 1], excess = entry, excess - size
  end
  remove(first_line, entries)
  return #entries, excess
end

-- Remove up to `most` tasks that have expired, and up to `most` above the budget (bytes). Return how many of the latter, and whether there is
-- more to do.
function retention.sweep(budget, most)
  local removed, early = 0, 0
  for _, line in ipairs(retention.lines()) do
    local over = call('ZRANGEBYSCORE', line, '-inf', NOW_TEXT, 'LIMIT', '0', whole(most - removed))
    remove(line, over)
    removed = removed + #over
    if removed == most then break end
  end
  local excess = num(call('HGET', keys.pool(), 'kept')) - budget
  local number = 1
  while excess > 0 and early < most and number > 0 do
    number, excess = remove_first(excess, math.min(20, most - early))
    early = early + number
  end
  if early > 0 then call('HINCRBY', keys.pool(), 'dropped', whole(early)) end
  return early, removed == most or excess > 0
end

unit_of_work[#unit_of_work + 1] = retention
return retention
