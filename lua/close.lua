--[[ close: the one way a lease ends; put into settle and reap where they say `--include close.lua`.
  Takes the books of one lease and writes all of its end: budget, session, ledger, quota, queue, tombstone.
  bound    at most 14 commands, no loop
           session_there: the session that the lease was taken in, not a later one of the same name (its n is smaller)
  keeps    taken = sum of ledger rows + sum of granted of open leases; no key is created but the ledger ]]
local function close(books)
  -- books: keys {session, lease, quota, budget, leases, ledger}, member, sid, n, period, owner, terms, granted,
  --        charged, excess, tally, waste, how, meta, budget_there, session_there, lease_there, keep, retention
  local key, granted, charged = books.keys, books.granted, books.charged
  if books.budget_there then
    redis.call('HINCRBY', key.budget, 'taken', exact(charged - granted))
    redis.call('HINCRBY', key.budget, 'held', exact(-granted))
    redis.call('HINCRBY', key.budget, 'settled', exact(charged))
    redis.call('HINCRBY', key.budget, 'rows', '1')
    if books.owner then redis.call('HINCRBY', key.budget, 'key:' .. books.owner, exact(charged - granted)) end
  end
  if books.session_there then
    redis.call('HINCRBY', key.session, 'held', exact(-granted))
    redis.call('HINCRBY', key.session, 'used', exact(charged))
    redis.call('HINCRBY', key.session, 'open', '-1')
  end
  redis.call('XADD', key.ledger, '*', 'sid', books.sid, 'n', books.n, 'key', books.owner or '', 'granted', exact(granted),
    'charged', exact(charged), 'excess', exact(books.excess), 'how', books.how, 'terms', books.terms or '', 'meta', books.meta)
  redis.call('PEXPIRE', key.ledger, books.retention)
  redis.call('DEL', key.quota)
  redis.call('ZREM', key.leases, books.member)
  if books.lease_there then
    redis.call('HSET', key.lease, 'state', 'closed', 'charged', exact(charged), 'excess', exact(books.excess),
      'tally', exact(books.tally), 'waste', exact(books.waste), 'how', books.how, 'in', '0')
    redis.call('PEXPIRE', key.lease, books.keep)
  end
end
