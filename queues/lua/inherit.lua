-- inherit: bring the audit record of a release that kept it in Redis on its way to SQL
-- KEYS[1]  prefix of the pool
-- ARGV[1]  how many entries at most
-- returns  how many are left. Each is brought once: it goes in the same step.
script('inherit', nil, function(ARGV)
  local audit = keys.audit()
  for _, entry in ipairs(call('XRANGE', audit, '-', '+', 'COUNT', ARGV[1])) do
    local ms, number = string.match(entry[1], '(%d+)%-(%d+)')
    local of = {}
    for i = 1, #entry[2], 2 do of[entry[2][i]] = entry[2][i + 1] end
    record_act(ms .. string.format('%03d-%08d', math.min(number, 999), number), of.who, '', of.action, of.target, of.before, of.after)
    call('XDEL', audit, entry[1])
  end
  local left = call('XLEN', audit)
  if left == 0 then call('DEL', audit) end
  return left
end)
