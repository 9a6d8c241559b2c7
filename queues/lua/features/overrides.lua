-- Overrides: values that operators set on top of the configuration while the gateways run. One hash has all of them; the fields of each
-- are OVERRIDE in keys.py. The newest override that sets a value wins. Scripts apply `settings` of a queue or a model in the step that
-- writes the override. Replicas apply `values`; they read all overrides again when the version in the pool's hash changes.
local overrides = {}
local MAX_OVERRIDES = 1000

-- Return the overrides of a target, the oldest first.
local function of(target, name)
  local flat, found = call('HGETALL', keys.overrides()), {}
  for i = 1, #flat, 2 do
    local override = cmsgpack.unpack(flat[i + 1])
    if override.target == target and override.name == name then found[#found + 1] = override end
  end
  table.sort(found, function(one, other) return one.order < other.order end)
  return found
end

local function version() return num(call('HGET', keys.pool(), 'overrides')) end

-- Set a new version, larger than all before. An override that is created or promoted takes it as its order.
local function moved()
  local now = math.max(US, version() + 1)
  call('HSET', keys.pool(), 'overrides', whole(now))
  return now
end

local function load(id)
  local packed = call('HGET', keys.overrides(), id)
  return packed and cmsgpack.unpack(packed)
end

local function write(override)
  call('HSET', keys.overrides(), override.id, cmsgpack.pack(override))
  if override['until'] > 0 then
    call('ZADD', keys.override_ends(), whole(override['until']), override.id)
  else
    call('ZREM', keys.override_ends(), override.id)
  end
  moved()
end

local function remove(id)
  call('HDEL', keys.overrides(), id)
  call('ZREM', keys.override_ends(), id)
  moved()
end

local function full() return call('HLEN', keys.overrides()) >= MAX_OVERRIDES end

-- Return another override with a percentage of the same target: two percentages of one route would overlap.
local function conflict(override)
  if override.percent == 100 then return nil end
  for _, other in ipairs(of(override.target, override.name)) do
    if other.id ~= override.id and other.percent < 100 then return other.id end
  end
end

-- Remove settings and values from the other overrides of a target, because `override` sets them permanently. `promoted`: only from overrides
-- of this status.
local function supersede(override, promoted)
  for _, other in ipairs(of(override.target, override.name)) do
    if other.id ~= override.id and (other.status == 'promoted' or not promoted) then
      local changed = false
      for _, part in ipairs({ 'settings', 'values' }) do
        for name in pairs(override[part]) do
          changed = changed or other[part][name] ~= nil
          other[part][name] = nil
        end
      end
      if not (next(other.settings) or next(other.values)) then
        remove(other.id)
      elseif changed then
        write(other)
      end
    end
  end
end

-- Apply the settings of a queue or a model that `override` names. Return the values before and after.
local function apply(override)
  local before, after = {}, {}
  if not next(override.settings) then return before, after end
  local kind = string.sub(override.target, 1, 1)
  local was, is = settings.apply(kind, override.name)
  for setting in pairs(override.settings) do
    before[setting], after[setting] = was[setting] == nil and cjson.null or was[setting], is[setting] == nil and cjson.null or is[setting]
  end
  if kind == 'm' and override.settings.paused ~= nil then
    local model = models.get(override.name)
    model.cooldown_until, model.cooldown_by = nil, nil
    models.save(override.name)
  end
  for _, name in ipairs(kind == 'm' and { override.name } or call('ZRANGE', keys.backlog(), '0', '999')) do waking.wake(name) end
  return before, after
end

settings.add_layer(function(kind, name)
  local values = {}
  for _, override in ipairs(of(kind == 'm' and 'model' or 'queue', name)) do
    for setting, value in pairs(override.settings) do values[setting] = value end
  end
  return values
end)

-- Write an audit log entry of an override.
local function audit(override, action, ask, before, after)
  return outbox.action({ noted = ask.noted, actor = ask.who, address = ask.address, mark = ask.mark, action = action, target = 'override ' .. override.id,
    before = before, after = after })
end

hooks.attach('sweep', nil, function()
  for _, id in ipairs(call('ZRANGEBYSCORE', keys.override_ends(), '-inf', NOW_TEXT, 'LIMIT', '0', '20')) do
    local override = load(id)
    remove(id)
    audit(override, 'end', { who = override.created_by, address = '', mark = string.sub(redis.sha1hex(id), 1, 8) },
      { status = 'active' }, { status = 'ended' })
    apply(override)
  end
end)

-- list_overrides: all overrides
-- returns   {version ('': there was none yet), now}, and the overrides, packed (keys.py, OVERRIDE)
script('list_overrides', 'no-writes', function() return { version = call('HGET', keys.pool(), 'overrides') or '', now = NOW }, unpack(call('HVALS', keys.overrides())) end)

-- create_override: set values of a route, a model or a queue on top of the configuration, and write an audit log entry
-- args      override: id, and the fields OVERRIDE in keys.py without order, status and created_at; who, address and mark of the audit log entry,
--           shown: the entry's text of the override; check: only report whether it can be created
-- returns   {outcome = 'ok'}, and the override, packed | {outcome = 'conflict', id}: another override has a percentage of the route |
--           {outcome = 'full'}: there are too many | {outcome = 'past', now}: it would end before it begins
-- A second call changes nothing.
script('create_override', nil, function(ask)
  local override = ask.override
  local known = call('HGET', keys.overrides(), override.id)
  if known then return { outcome = 'ok' }, known end
  override.status, override.order, override.created_at, override.created_by = 'active', ask.check and US or moved(), NOW, ask.who
  if passed(override['until']) then return { outcome = 'past', now = NOW } end
  if full() then return { outcome = 'full' } end
  local other = conflict(override)
  if other then return { outcome = 'conflict', id = other } end
  if not ask.check then
    write(override)
    audit(override, 'create', ask, {}, ask.shown)
    apply(override)
  end
  return { outcome = 'ok' }, cmsgpack.pack(override)
end)

-- update_override: change an override's percentage or end, promote it or roll it back, and write an audit log entry
-- args      id; action: update | promote | rollback; who, address, mark; of an update percent, until (ms, 0: no end), or one of both
-- returns   {outcome = 'ok'}, and the override, packed | {outcome = 'unknown'}: there is none | {outcome = 'promoted'}: it has neither
--           percentage nor end | {outcome = 'conflict', id}: another override has a percentage of the route | {outcome = 'past', now}: that time is over
-- Updating to the values that it has, and promoting a promoted override, change nothing.
script('update_override', nil, function(ask)
  local override = load(ask.id)
  if not override then return { outcome = 'unknown' } end
  if ask.action == 'rollback' then
    audit(override, ask.action, ask, { status = override.status }, { status = 'rolled_back' })
    remove(override.id)
    apply(override)
  elseif ask.action == 'promote' then
    if override.status ~= 'promoted' then
      audit(override, ask.action, ask, { status = 'active', percent = override.percent }, { status = 'promoted', percent = 100 })
      override.status, override.percent, override['until'], override.order = 'promoted', 100, 0, moved()
      write(override)
      supersede(override, true)
      apply(override)
    end
  else
    if override.status == 'promoted' then return { outcome = 'promoted' } end
    if passed(ask['until']) then return { outcome = 'past', now = NOW } end
    local before = { percent = override.percent, ['until'] = override['until'] }
    override.percent, override['until'] = ask.percent or override.percent, ask['until'] or override['until']
    local other = conflict(override)
    if other then return { outcome = 'conflict', id = other } end
    if override.percent ~= before.percent or override['until'] ~= before['until'] then
      audit(override, ask.action, ask, before, { percent = override.percent, ['until'] = override['until'] })
      write(override)
    end
  end
  return { outcome = 'ok' }, cmsgpack.pack(override)
end)

-- set_settings: set settings of a queue or a model permanently, in a promoted override, and write an audit log entry
-- args      id of the override, target (queue | model), name; settings: setting -> value; unset: settings that are as configured again; who,
--           address, mark
-- returns   {outcome = 'ok', audit: id of the audit entry}, and the values before and after, packed | {outcome = 'unknown'} queue |
--           {outcome = 'full'} there are too many overrides
-- No other override of the queue or model sets these settings afterwards.
script('set_settings', nil, function(ask)
  if ask.target == 'queue' and call('SISMEMBER', keys.queues(), ask.name) == 0 then return { outcome = 'unknown' } end
  if next(ask.settings) and full() then return { outcome = 'full' } end
  local named = {}
  for setting, value in pairs(ask.settings) do named[setting] = value end
  for _, setting in ipairs(ask.unset) do named[setting] = false end
  local override = { id = ask.id, target = ask.target, name = ask.name, settings = named, values = {} }
  supersede(override, false)
  if next(ask.settings) then
    override.status, override.percent, override['until'], override.settings = 'promoted', 100, 0, ask.settings
    override.order, override.created_at, override.created_by = moved(), NOW, ask.who
    write(override)
    override.settings = named
  end
  local before, after = apply(override)
  local id = outbox.action({ noted = ask.noted, actor = ask.who, address = ask.address, mark = ask.mark, action = 'update', target = ask.target .. ' ' .. ask.name,
    before = before, after = after })
  return { outcome = 'ok', audit = id }, cmsgpack.pack(before), cmsgpack.pack(after)
end)

return overrides
