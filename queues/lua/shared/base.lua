-- What every script begins with: the time, records, messages.
--
-- All files are one library of Redis functions: what they define is made once, when it is loaded, and a call sets what changes.
-- A text in Lua may have 200 local names, so what only a file's own functions use lies between its `do` and `end`.
-- Numbers that are written become text by `whole`: Redis takes twice as long to convert a number that it is given.
local call
local US -- microseconds
local US_TEXT
local NOW -- milliseconds; 13 digits, so `..` writes it whole (it writes 14)
local NOW_TEXT
local FOREVER = 9007199254740991

-- Make a script known. `flag`: 'allow-oom' where it frees more than it takes, or keeps alive what runs: a full Redis carries it
-- out, and refuses others as a whole; 'no-writes' where it only reads; nil.
local function script(name, flag, body)
  redis.register_function({
    function_name = LIBRARY .. '_' .. name,
    flags = { flag },
    callback = function(prefixes, args)
      call, P = redis.call, prefixes[1]
      US = clock_us()
      US_TEXT = string.format('%d', US)
      NOW, NOW_TEXT = math.floor(US / 1000), string.sub(US_TEXT, 1, -4)
      return body(args)
    end,
  })
end

-- A value of more than 64 bytes makes Redis keep a hash as a table: its fields are found without looking through all.
local WIDE = '-----------------------------------------------------------------'

-- Whether a model is an endpoint's: workers of every model do not run it.
local function is_reserved(model) return string.sub(model, 1, 5) == 'http:' end

-- Bodies of this size (bytes) and more are counted by user, too.
local LARGE_BODY = 16384

-- A number as text, without its fraction.
local function whole(number) return string.format('%d', number) end

-- The names by which workers offer a model: its own, and that of every model; an endpoint's only its own.
local function offered_as(model)
  if model == '*' then return { '*' } end
  return is_reserved(model) and { model } or { model, '*' }
end

-- A record as a table of strings; nil when there is none.
local function load(id)
  local flat = call('HGETALL', keys.task(id))
  if #flat == 0 then return nil end
  local t = {}
  for i = 1, #flat, 2 do t[flat[i]] = flat[i + 1] end
  return t
end

-- A stored number; 0 when there is none. (An addition converts text in half the time of `tonumber`.)
local function num(text) return text and text ~= '' and text + 0 or 0 end

-- Has this instant come? An absent one never comes.
local function passed(instant)
  local at = num(instant)
  return at > 0 and at <= NOW
end

local function earlier(at, instant)
  local v = num(instant)
  return v > 0 and v < at and v or at
end

-- The instant at which the sweep must look at a task that waits.
local function wait_instant(t)
  return whole(earlier(earlier(earlier(earlier(FOREVER, t.wait_deadline), t.deadline), t.linger_at), t.stranded_until))
end

-- The same for a task that runs, whose lease ends at `lease_end`.
local function run_instant(t, lease_end) return whole(earlier(earlier(lease_end, t.attempt_deadline), t.linger_at)) end

-- The first part of the ids of what is logged from now on: the time, us, and larger than any before of this task. No second one is
-- the same, also when the store has forgotten the first: so no id ever names two events. Where the clock went back it is a time to
-- come, and the fraction of the second makes it unique.
local function new_epoch(t)
  local last = num(t.epoch)
  return US > last and US_TEXT or whole(last + 1 + US % 1000000)
end

-- Publish to a replica; the number of receivers.
local function publish(replica, message) return call('PUBLISH', keys.channel(replica), message) end

-- Publish an event to the readers' replicas, all but `except`. Large events travel by id only.
local function publish_event(readers, id, event_id, kind, data, except)
  if not readers or readers == '' or readers == except then return end
  local message
  for replica in string.gmatch(readers, '[^,]+') do
    if replica ~= except then
      if not message then
        if #data > 65536 then
          message = 'event_id\n' .. id .. '\n' .. event_id
        else
          message = 'event\n' .. id .. '\n' .. event_id .. '\n' .. kind .. '\n' .. data
        end
      end
      publish(replica, message)
    end
  end
end

-- The data of an event made here: `rest` is its fields without braces.
local function event_data(id, rest) return '{"taskId":"' .. id .. '","ts":' .. NOW_TEXT .. ',' .. rest .. '}' end

-- `parse`, with what it came to kept by its text: the same for many tasks.
local function memoize(parse)
  local found, number = {}, 0
  return function(text)
    local value = found[text]
    if not value then
      value = parse(text)
      if number == 1000 then found, number = {}, 0 end
      found[text], number = value, number + 1
    end
    return value
  end
end
