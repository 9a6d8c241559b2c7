-- search_tasks: a part of the tasks that an operator looks for, newest first; changes nothing
-- KEYS[1]  prefix of the pool
-- ARGV[1]  'running': all that hold a slot (of very many, those of the models used last) | 'recent': the last ones that were submitted
-- ARGV[2]  task after which to continue; '' = from the newest
-- ARGV[3]  tasks to look at, at most
-- ARGV[4]  tasks to find, at most
-- ARGV[5…] field of the record, value, …: what a task must have; model = the one that was asked for, or as which it is scheduled;
--          route = the name that its caller gave, a route or a model, whichever model runs it;
--          text = a part of its id or its user, or how its request's id begins, in small letters;
--          from, to = submitted then or later, and before then, ms
-- returns  {task after which to continue | '' no more, {id, {field, value, …}}, …}
script('search_tasks', 'no-writes', function(ARGV)
  local after, most_looked, most_found = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
  local fields, values, text, from, to = {}, {}, nil, nil, nil
  for i = 5, #ARGV, 2 do
    if ARGV[i] == 'text' then
      text = ARGV[i + 1]
    elseif ARGV[i] == 'from' then
      from = tonumber(ARGV[i + 1])
    elseif ARGV[i] == 'to' then
      to = tonumber(ARGV[i + 1])
    else
      fields[#fields + 1] = ARGV[i]
      values[#values + 1] = ARGV[i + 1]
    end
  end

  local line = keys.recent()

  local function says(id)
    local known = call('HMGET', keys.task(id), 'user', 'request_id')
    local said = string.lower(id .. '\n' .. (known[1] or ''))
    return string.find(said, text, 1, true) or string.sub(string.lower(known[2] or ''), 1, #text) == text
  end

  local function then_submitted(id)
    local enqueued = tonumber(call('HGET', keys.task(id), 'enqueued_at') or '')
    return enqueued and enqueued >= (from or 0) and (not to or enqueued < to)
  end

  local function matches(id)
    if (from or to) and not then_submitted(id) then return false end
    if text and not says(id) then return false end
    if #fields == 0 then return true end
    local found = call('HMGET', keys.task(id), unpack(fields))
    for i = 1, #fields do
      local other = found[i] ~= values[i]
      if other and fields[i] == 'model' then other = call('HGET', keys.task(id), 'requested_model') ~= values[i] end
      if fields[i] == 'route' and not found[i] then -- no other model may run it
        local model = call('HMGET', keys.task(id), 'requested_model', 'model')
        other = (model[1] or model[2]) ~= values[i]
      end
      if other then return false end
    end
    return true
  end

  local MAX_SORTED = 10000
  local ids = {}
  if ARGV[1] == 'running' then
    for _, model in ipairs(call('ZREVRANGE', keys.models(), '0', '999')) do
      if #ids >= MAX_SORTED then break end
      for _, id in ipairs(call('ZRANGE', keys.slots(model), '0', whole(MAX_SORTED - #ids - 1))) do
        if after == '' or id < after then ids[#ids + 1] = id end
      end
    end
    table.sort(ids, function(a, b) return a > b end) -- ids begin with the time of their submission
  else
    local rank = after ~= '' and call('ZREVRANK', line, after)
    local from = after == '' and 0 or rank and rank + 1
    if not from then return { '' } end
    ids = call('ZREVRANGE', line, from, from + most_looked)
  end

  local reply = { '' }
  for looked, id in ipairs(ids) do
    if looked > most_looked or #reply > most_found then
      reply[1] = ids[looked - 1]
      break
    end
    if matches(id) then
      local record = call('HGETALL', keys.task(id))
      if #record > 0 then reply[#reply + 1] = { id, record } end
    end
  end
  return reply
end)
