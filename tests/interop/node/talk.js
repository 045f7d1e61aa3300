'use strict';
// Sends COUNT messages with npm's ali-ons, or receives them: one JSON line for each.
//   node talk.js send|receive|receive-later|receive-all NAME_SERVER TOPIC GROUP COUNT
// receive-later asks to get its first message again; receive-all is a member of a broadcasting
// group, from the first message of each queue.

const { Consumer, Producer, Message } = require('ali-ons');

const [ mode, nameSrv, topic, group, count ] = process.argv.slice(2);
const quiet = { info() {}, warn() {}, debug() {}, error: console.error };
// asked for, needed only without nameSrv
const httpclient = { request() { throw new Error('no look-up of addresses is wanted'); } };
const options = { nameSrv, httpclient, accessKeyId: '', accessKeySecret: '', logger: quiet };

function print(line) {
  process.stdout.write(JSON.stringify(line) + '\n');
}

async function send() {
  const producer = new Producer({ ...options, producerGroup: group });
  producer.on('error', fail);
  await producer.ready();
  for (let i = 0; i < Number(count); i++) {
    const message = new Message(topic, i % 2 ? 'odd' : 'even', `café ${i}`);
    message.keys = [ `key${i}` ];
    const result = await producer.send(message);
    print({
      status: result.sendStatus,
      id: result.msgId,
      queue: result.messageQueue.queueId,
      offset: result.queueOffset,
    });
  }
  await producer.close();
}

async function receive() {
  let left = Number(count);
  let later = mode === 'receive-later';
  const kind =
    mode === 'receive-all'
      ? { isBroadcast: true, consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET' }
      : {};
  const consumer = new Consumer({ ...options, ...kind, consumerGroup: group });
  consumer.on('error', fail);
  let done;
  const all = new Promise(resolve => { done = resolve; });
  consumer.subscribe(topic, 'even', async message => {
    print({
      body: message.body.toString(),
      tag: message.tags,
      keys: message.keys,
      retries: message.reconsumeTimes,
    });
    if (--left === 0) done();
    if (later) {
      later = false;
      return Consumer.ACTION_RETRY;
    }
  });
  await consumer.ready();
  print({ ready: true });
  await all;
  await consumer.close(); // tells the broker how far it is
}

function fail(error) {
  console.error(error);
  process.exit(1);
}

(mode === 'send' ? send() : receive()).then(() => process.exit(0), fail);
