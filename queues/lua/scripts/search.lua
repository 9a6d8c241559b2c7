-- search: return a page of the tasks that match an operator's search, newest first; changes nothing
-- args      source: 'running': tasks that hold a slot (up to MAX_SORTED, of the models used last) | 'recent': also waiting and ended tasks; after: id
--           of the task before the page, '' = from the newest; look_at, find: how many tasks to check, and to return, at most; wanted: field of
--           the record -> value (model: as requested or as scheduled; route: the name that the client gave, a route or a model); text: part
--           of the id or user, or beginning of the request's id, in lower case; from, to: submitted at or after, and before, ms
-- returns   {after: '' = no more}, and of each task the two parts of its record
local MAX_SORTED = 10000

local function value_of(task, field)
  local asked = task.requested_model or task.model
  if field == 'route' then return task.route or asked end
  return task[field]
end

local function matches(task, ask)
  if ask.from and task.enqueued_at < ask.from or ask.to and task.enqueued_at >= ask.to then return false end
  if ask.text then
    local said = string.lower(task.id .. '\n' .. task.user)
    local request = string.sub(string.lower(task.request_id or ''), 1, #ask.text)
    if not string.find(said, ask.text, 1, true) and request ~= ask.text then return false end
  end
  for field, value in pairs(ask.wanted) do
    if tostring(value_of(task, field)) ~= value and not (field == 'model' and task.requested_model == value) then return false end
  end
  return true
end

local function running()
  local ids = {}
  for _, name in ipairs(call('ZREVRANGE', keys.models(), '0', '999')) do
    if #ids >= MAX_SORTED then break end
    for _, id in ipairs(call('ZRANGE', keys.slots(name), '0', whole(MAX_SORTED - #ids - 1))) do ids[#ids + 1] = id end
  end
  return ids
end

local function recent()
  local ids = call('ZREVRANGE', keys.due(), '0', whole(MAX_SORTED - 1))
  for _, line in ipairs(retention.lines()) do
    for _, entry in ipairs(call('ZREVRANGE', line, '0', whole(MAX_SORTED - 1))) do ids[#ids + 1] = string.match(entry, '^%S+') end
  end
  return ids
end

script('search', 'no-writes', function(ask)
  local ids, found, last = ask.source == 'running' and running() or recent(), {}, ''
  table.sort(ids, function(a, b) return a > b end) -- ids begin with the time of their submission
  local looked = 0
  for _, id in ipairs(ids) do
    if ask.after == '' or id < ask.after then
      if looked == ask.look_at or #found == 2 * ask.find then return { after = last }, unpack(found) end
      looked, last = looked + 1, id
      local task = records.load(id)
      if task and task.state ~= 'gone' and matches(task, ask) then
        found[#found + 1], found[#found + 2] = cmsgpack.pack(task), task.spec_text
      end
    end
  end
  return { after = '' }, unpack(found)
end)
