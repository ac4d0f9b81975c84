// Feeds a stream of a Millrace server with the rows that arrive on standard input, one JSON object per line.
//
//   node feed.mjs [tls://]HOST:PORT STREAM PRODUCER [--append] < rows.jsonl
//
// No row is lost or fed twice, whatever breaks: a row is kept until the server says that it has it, and is sent again
// on the next connection with the same number. The number of a row is its place in the input. So the same command with
// the same input continues where an earlier one ended. With --append the input is new: its rows are numbered from where
// the server is.
//
// MILLRACE_TOKEN is the server's token. Exit codes: 0 the server has all rows, 1 it has refused some, 2 it cannot be fed.

import net from 'node:net'
import tls from 'node:tls'
import { createInterface } from 'node:readline'

const MOST_ROWS = 10_000 // in memory; with more, standard input waits
const BUFFER_BYTES = 1 << 18 // of the socket; with more, rows wait
const FIRST_PAUSE = 100 // milliseconds between two attempts to connect, doubled up to the longest
const LONGEST_PAUSE = 5_000
const SILENCE = 30_000 // milliseconds without an answer, after which the connection counts as broken
// Errors after which another attempt would fail, too.
const FINAL = new Set(['unknown_stream', 'unauthorised', 'wrong_port', 'taken_over', 'dropped', 'altered'])

const words = process.argv.slice(2).filter((word) => word !== '--append')
const append = process.argv.includes('--append')
if (words.length !== 3) {
  stop('usage: node feed.mjs [tls://]HOST:PORT STREAM PRODUCER [--append] < rows.jsonl')
}
const [address, stream, producer] = words
const [, secure, host, port] = /^(tls:\/\/)?(.+):(\d+)$/.exec(address) ?? stop(`${address}: expected HOST:PORT`)

// Invariant: `rows` are the rows from number `first` on, and those below `sent` were written to `socket`.
let rows = []
let first = 0
let sent = 0
let socket = null // once the server has said where the feed continues
let started = !append // whether the numbers of the input are known
let ended = false // whether the input has ended
let pause = FIRST_PAUSE
let wake = () => {} // called when there is room for more rows
const refused = new Set() // numbers of rows that the server has refused and not acknowledged yet
let code = 0

function stop(text) {
  console.error(text)
  process.exit(2)
}

function connect() {
  const options = { host: host.replace(/^\[|\]$/g, ''), port: Number(port), servername: host }
  const made = secure ? tls.connect(options) : net.connect(options)
  made.setNoDelay(true)
  made.setTimeout(SILENCE, () => (rows.length || !started) && made.destroy())
  made.once(secure ? 'secureConnect' : 'connect', () => {
    if (process.env.MILLRACE_TOKEN) say(made, { token: process.env.MILLRACE_TOKEN })
    say(made, { stream, producer, open: true, seq: first })
  })
  const ignore = () => {} // 'close' follows each error
  createInterface({ input: made }).on('line', (line) => hear(made, JSON.parse(line))).on('error', ignore)
  made.on('error', ignore)
  made.on('drain', send)
  made.on('close', () => {
    socket = null
    if (ended && started && !rows.length) process.exit(code)
    setTimeout(connect, pause * (0.5 + Math.random() / 2))
    pause = Math.min(2 * pause, LONGEST_PAUSE)
  })
}

function say(to, line) {
  to.write(JSON.stringify(line) + '\n')
}

function hear(from, { ack, error }) {
  if (ack) {
    if (socket !== from) {
      socket = from
      sent = ack.next // what the server has need not be sent again
      if (!started) first = ack.next
      started = true
      pause = FIRST_PAUSE
    }
    release(ack.durable ?? ack.next) // a server without a data directory says null
    send()
  } else if (error?.seq !== undefined && error.code !== 'out_of_order' && !FINAL.has(error.code)) {
    if (!refused.has(error.seq)) console.error(`row ${error.seq} was refused: ${error.text}`)
    refused.add(error.seq)
    code = 1
  } else if (error) {
    if (FINAL.has(error.code)) stop(`${address}: ${error.text}`)
    from.destroy() // the next connection starts with what the server has
  }
}

// The server has the rows below this number.
function release(number) {
  while (first < number && rows.length) {
    rows.shift()
    refused.delete(first++)
  }
  if (rows.length < MOST_ROWS) wake()
  finish()
}

function send() {
  while (socket && sent < first + rows.length && socket.writableLength < BUFFER_BYTES) {
    const at = sent++
    if (at < first) continue
    // The row as it was read: integers beyond 2^53 keep all their digits.
    socket.write(`{"stream": ${JSON.stringify(stream)}, "producer": ${JSON.stringify(producer)}, "seq": ${at}, "tuple": ${rows[at - first]}}\n`)
  }
}

function finish() {
  if (ended && started && !rows.length && socket) {
    say(socket, { stream, producer, close: true })
    socket.end()
  }
}

function isRow(line) {
  try {
    const value = JSON.parse(line)
    return typeof value === 'object' && value !== null && !Array.isArray(value)
  } catch {
    return false
  }
}

connect()
let number = 0
for await (const line of createInterface({ input: process.stdin })) {
  number += 1
  if (!line.trim()) continue
  if (!isRow(line)) {
    console.error(`line ${number} of the input is not a JSON object: it is skipped`)
    code = 1
    continue
  }
  rows.push(line)
  send()
  while (rows.length >= MOST_ROWS) await new Promise((resume) => (wake = resume))
}
ended = true
finish()
