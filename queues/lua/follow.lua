-- follow: begin to read a task here: its record, its place, and the log after a cursor; from now on its events are published
-- to this replica's channel. One step, so no event falls between the page and the channel.
-- KEYS[1]  prefix of the pool
-- ARGV[1]  task id
-- ARGV[2]  replica
-- ARGV[3]  cursor: last event id seen, or '-' for the beginning
-- ARGV[4]  events to return at most
-- ARGV[5]  1: the reader keeps the task alive (its linger is renewed)
-- returns  {place, now ms, record, events} | {} unknown; the record is not changed once the task has ended
local id, replica = ARGV[1], ARGV[2]
local t = load(id)
if not t or t.st == 'gone' then return {} end
local where = { 0, 0, 0, 0 }
if t.st == 'queued' or t.st == 'executing' then
  local readers = t.rd or ''
  if not string.find(',' .. readers .. ',', ',' .. replica .. ',', 1, true) then
    t.rd = readers == '' and replica or readers .. ',' .. replica
    even_if_full()
    call('HSET', key_task(id), 'rd', t.rd)
  end
  if ARGV[5] == '1' and t.lg then
    t.lv = whole(NOW + num(t.lg)) -- text, as a record's fields are
    even_if_full()
    call('HSET', key_task(id), 'lv', t.lv)
    local instant = t.st == 'queued' and wait_instant(t) or run_instant(t, num(call('ZSCORE', key_slots(t.m), id)))
    call('ZADD', key_look(), instant, id)
  end
  if t.st == 'queued' then where = place(id, t) end
end
local record = {}
for field, value in pairs(t) do
  record[#record + 1] = field
  record[#record + 1] = value
end
local from = ARGV[3] == '-' and '-' or '(' .. ARGV[3]
return { where, NOW, record, call('XRANGE', key_log(id), from, '+', 'COUNT', ARGV[4]) }
