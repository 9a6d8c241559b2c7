-- Changes while running: settings of queues and models, and changes that are set down as objects (keys.py, CHANGE), which begin and end
-- at times of their own and can be taken back. What those of the kind `route` say, or of single tasks of a model, the replicas go by:
-- they read all changes anew when their version moves. What they say of a queue or model as a whole is set here, in the same step.
-- (One name for all: a text in Lua may have 200 at a time.)
local changing = {}
do
local MOST_KEPT = 200

-- Set something of a queue or model (`word`): {{setting, value}, …}; '' = back to what is configured. And write down who did: `mark`
-- tells the entry from others of this instant. Returns its id, JSON objects of what held before and what holds, and by setting the
-- changes that held before: '' = what is configured.
function changing.set(word, name, settings, who, address, mark)
  local kind = string.sub(word, 1, 1)
  local hash = hash_of(kind, name)
  local before, after, overrides = {}, {}, {}
  for _, pair in ipairs(settings) do
    local setting, value = pair[1], pair[2]
    local field = kind .. ':' .. name .. ':' .. setting
    before[setting] = call('HGET', hash, setting) or cjson.null
    overrides[setting] = call('HGET', keys.overrides(), field) or ''
    if value == '' then
      call('HDEL', keys.overrides(), field)
      value = call('HGET', keys.configured(), field) or nil
    else
      call('HSET', keys.overrides(), field, value)
    end
    set(kind, name, setting, value)
    after[setting] = value or cjson.null
    if kind == 'm' and setting == 'paused' and value ~= '1' then call('HDEL', hash, 'held') end
  end
  if kind == 'm' then
    call('HDEL', hash, 'fixed')
    for _, known in ipairs({ keys.configured(), keys.overrides() }) do
      for _, field in ipairs(call('HKEYS', known)) do
        local of, whose = split(field)
        if of == 'm' and whose == name then call('HSET', hash, 'fixed', '1') end
      end
    end
    call('ZADD', keys.models(), 'GT', NOW_TEXT, name)
  end
  rules_changed(kind == 'm' and { name } or {}, kind == 'q')
  local was, is = cjson.encode(before), cjson.encode(after)
  local entry = record_act(US_TEXT .. '-' .. mark, who, address, 'set', word .. ' ' .. name, was, is)
  for _, pair in ipairs(settings) do
    local field = kind .. ':' .. name .. ':' .. pair[1]
    if pair[2] == '' then
      call('HDEL', keys.changed(), field)
    else
      call('HSET', keys.changed(), field, entry .. ' ' .. who .. ' ' .. pair[2])
    end
  end
  return entry, was, is, overrides
end

function changing.load(id)
  local flat = call('HGETALL', keys.change(id))
  if #flat == 0 then return nil end
  local c = {}
  for i = 1, #flat, 2 do c[flat[i]] = flat[i + 1] end
  return c
end

function changing.live(c) return c.st == 'scheduled' or c.st == 'active' end

-- Lines of a setting, a tab and its value.
function changing.parse_settings(text)
  local list = {}
  for line in string.gmatch(text, '[^\n]+') do
    local setting, value = string.match(line, '^([^\t]*)\t(.*)$')
    list[#list + 1] = { setting, value }
  end
  return list
end

-- The live change that one cannot stand beside, which holds from `from` to `to`: of the same route or model, or of one of the same
-- settings of a queue or model as a whole, while that holds. And how many are live.
function changing.in_the_way(id, c, from, to)
  local number, found, mine = 0, nil, {}
  for _, pair in ipairs(changing.parse_settings(c.se or '')) do mine[pair[1]] = true end
  for _, other in ipairs(call('ZRANGE', keys.changes(), '0', '-1')) do
    local its = other ~= id and changing.load(other)
    if its and changing.live(its) then
      number = number + 1
      local begins, ends = its.st == 'active' and num(its.bg) or num(its.at), num(its.un)
      if its.ki == c.ki and its.na == c.na and begins < to and (ends == 0 or from < ends) then
        local same = not its.se and not c.se
        for _, pair in ipairs(changing.parse_settings(c.se and its.se or '')) do same = same or mine[pair[1]] end
        if same then found = found or other end
      end
    end
  end
  return found, number
end

function changing.version() return call('HGET', keys.pool(), 'changes') or '' end

function changing.moved() call('HSET', keys.pool(), 'changes', US_TEXT) end

-- When the sweep is to look at a change next.
function changing.note_due(id, c)
  local at = c.st == 'scheduled' and num(c.at) or c.st == 'active' and num(c.un) or 0
  if at > 0 then call('ZADD', keys.due(), whole(at), id) else call('ZREM', keys.due(), id) end
  changing.moved()
end

-- Keep a change, under its id; of those that are over the oldest go.
function changing.keep(id, c)
  local fields = {}
  for name, value in pairs(c) do
    fields[#fields + 1], fields[#fields + 2] = name, value
  end
  call('HSET', keys.change(id), unpack(fields))
  call('ZADD', keys.changes(), 'NX', US_TEXT, id)
  changing.note_due(id, c)
  local excess = call('ZCARD', keys.changes()) - MOST_KEPT
  for _, other in ipairs(excess > 0 and call('ZRANGE', keys.changes(), '0', '-1') or {}) do
    local its = excess > 0 and changing.load(other)
    if excess > 0 and not (its and changing.live(its)) then
      call('DEL', keys.change(other))
      call('ZREM', keys.changes(), other)
      excess = excess - 1
    end
  end
end

function changing.mark_of(id, word) return string.sub(redis.sha1hex(id .. word .. US_TEXT), 1, 8) end

-- Set what a change says of a queue or model as a whole, for whoever made it. Returns the changes that held before.
function changing.set_for(id, c, settings, word)
  return select(4, changing.set(c.ki, c.na, settings, c.who, c.ad, changing.mark_of(id, word)))
end

-- Let a change begin. `by_time`: nobody asks for it now.
function changing.begin(id, c, by_time)
  if by_time then
    local entry = US_TEXT .. '-' .. changing.mark_of(id, 'begin')
    record_act(entry, c.who, '', 'begin', 'change ' .. id, '{"state":"scheduled"}', '{"state":"active"}')
  end
  c.st, c.bg = 'active', NOW_TEXT
  call('HSET', keys.change(id), 'st', c.st, 'bg', c.bg)
  if c.se then
    local before = {}
    for setting, value in pairs(changing.set_for(id, c, changing.parse_settings(c.se), 'set')) do before[#before + 1] = setting .. '\t' .. value end
    c.wa = table.concat(before, '\n')
    call('HSET', keys.change(id), 'wa', c.wa)
  end
  changing.note_due(id, c)
end

-- Let a change end: by its time ('ended'), or as it is taken back ('taken_back'). What it set and still holds is what it was before.
function changing.stop(id, c, state)
  if state == 'ended' then
    local entry = US_TEXT .. '-' .. changing.mark_of(id, 'end')
    record_act(entry, c.who, '', 'end', 'change ' .. id, '{"state":"active"}', '{"state":"ended"}')
  end
  if c.st == 'active' and c.se then
    local said, back = {}, {}
    for _, pair in ipairs(changing.parse_settings(c.se)) do said[pair[1]] = pair[2] end
    for _, pair in ipairs(changing.parse_settings(c.wa or '')) do
      local field = string.sub(c.ki, 1, 1) .. ':' .. c.na .. ':' .. pair[1]
      if (call('HGET', keys.overrides(), field) or '') == said[pair[1]] then back[#back + 1] = pair end
    end
    if #back > 0 then changing.set_for(id, c, back, 'back') end
  end
  c.st, c.ed = state, NOW_TEXT
  call('HSET', keys.change(id), 'st', c.st, 'ed', c.ed)
  changing.note_due(id, c)
end

-- Begin and end what is due, `most` at most.
function changing.turn(most)
  for _, id in ipairs(call('ZRANGEBYSCORE', keys.due(), '-inf', NOW_TEXT, 'LIMIT', '0', whole(most))) do
    local c = changing.load(id)
    if not c or not changing.live(c) then
      call('ZREM', keys.due(), id)
    else
      if c.st == 'scheduled' then changing.begin(id, c, true) end
      if passed(c.un) then changing.stop(id, c, 'ended') end
    end
  end
end
end
