-- Overrides: values that operators set on top of the configuration while the gateways run. One hash has all of them; the fields of each
-- are OVERRIDE in keys.py. The newest override that sets a value wins. Scripts apply `settings`, of a queue or a model, in the step that
-- writes the override; replicas apply `values`, and read all overrides again when the version in the pool's hash moves.
local overrides = {}
do
local MAX_OVERRIDES = 1000

local function of(target, name)
  local flat, found = call('HGETALL', keys.overrides()), {}
  for i = 1, #flat, 2 do
    local override = cmsgpack.unpack(flat[i + 1])
    override.id = flat[i]
    if override.target == target and override.name == name then found[#found + 1] = override end
  end
  table.sort(found, function(one, other) return one.order < other.order end)
  return found
end

function overrides.version() return call('HGET', keys.pool(), 'overrides') or '' end

-- A new version, larger than all before. An override that is created or promoted takes it as its order.
function overrides.moved()
  local last = num(overrides.version())
  local version = US > last and US or last + 1
  call('HSET', keys.pool(), 'overrides', whole(version))
  return version
end

function overrides.full() return call('HLEN', keys.overrides()) >= MAX_OVERRIDES end

function overrides.load(id)
  local packed = call('HGET', keys.overrides(), id)
  if not packed then return nil end
  local override = cmsgpack.unpack(packed)
  override.id = id
  return override
end

function overrides.write(override)
  call('HSET', keys.overrides(), override.id, cmsgpack.pack(override))
  if override['until'] > 0 then
    call('ZADD', keys.override_ends(), whole(override['until']), override.id)
  else
    call('ZREM', keys.override_ends(), override.id)
  end
  overrides.moved()
end

function overrides.remove(id)
  call('HDEL', keys.overrides(), id)
  call('ZREM', keys.override_ends(), id)
  overrides.moved()
end

-- Another override of a share of the same tasks: two shares of one route would overlap.
function overrides.conflict(override)
  if override.percent == 100 then return nil end
  for _, other in ipairs(of(override.target, override.name)) do
    if other.id ~= override.id and other.percent < 100 then return other.id end
  end
end

-- Remove settings and values from the other overrides of a target, because `override` sets them for good. `promoted`: only from
-- overrides of this status.
function overrides.supersede(override, promoted)
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
        overrides.remove(other.id)
      elseif changed then
        overrides.write(other)
      end
    end
  end
end

-- Apply the settings of a queue or a model that `override` names: the newest override's value, else the configured one. Returns JSON
-- objects of the values before and after.
function overrides.apply(override)
  local before, after = {}, {}
  if not next(override.settings) then return '{}', '{}' end
  local kind, name, values = string.sub(override.target, 1, 1), override.name, {}
  local hash = hash_of(kind, name)
  for _, one in ipairs(of(override.target, name)) do
    for setting, value in pairs(one.settings) do values[setting] = value end
  end
  for setting in pairs(override.settings) do
    local field, value = kind .. ':' .. name .. ':' .. setting, values[setting]
    before[setting] = call('HGET', hash, setting) or cjson.null
    if value then
      call('HSET', keys.overridden(), field, value)
    else
      call('HDEL', keys.overridden(), field)
      value = call('HGET', keys.configured(), field) or nil
    end
    set(kind, name, setting, value)
    after[setting] = value or cjson.null
    if kind == 'm' and setting == 'paused' and value ~= '1' then call('HDEL', hash, 'cooldown_until', 'cooldown_by') end
  end
  if kind == 'm' then
    call('HDEL', hash, 'fixed')
    for _, known in ipairs({ keys.configured(), keys.overridden() }) do
      for _, field in ipairs(call('HKEYS', known)) do
        local of_kind, whose = split(field)
        if of_kind == 'm' and whose == name then call('HSET', hash, 'fixed', '1') end
      end
    end
    call('ZADD', keys.models(), 'GT', NOW_TEXT, name)
  end
  rules_changed(kind == 'm' and { name } or {}, kind == 'q')
  return cjson.encode(before), cjson.encode(after)
end

-- Write an audit log entry of an override; `mark` distinguishes it from others of this instant.
function overrides.audit(override, action, who, address, mark, before, after)
  return record_act(US_TEXT .. '-' .. mark, who, address, action, 'override ' .. override.id, before, after)
end

-- End the overrides whose time is over, at most `most`.
function overrides.expire(most)
  for _, id in ipairs(call('ZRANGEBYSCORE', keys.override_ends(), '-inf', NOW_TEXT, 'LIMIT', '0', whole(most))) do
    local override = overrides.load(id)
    overrides.remove(id)
    overrides.audit(override, 'end', override.created_by, '', string.sub(redis.sha1hex(id), 1, 8), '{"status":"active"}', '{"status":"ended"}')
    overrides.apply(override)
  end
end
end
