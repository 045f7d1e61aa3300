// Carries out the commands of sdks.py, one JSON object a line, with the official Node.js SDK.
'use strict';

const { createHash } = require('node:crypto');
const { createInterface } = require('node:readline');
const {
  ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer,
} = require('rocketmq-client-nodejs');
const {
  FilterType, TransactionResolution,
} = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const clients = new Map();
const held = new Map();
// deliveries to push consumers, by message
const deliveries = new Map();
const RESOLUTIONS = {
  commit: TransactionResolution.COMMIT,
  rollback: TransactionResolution.ROLLBACK,
  unknown: TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED,
};

function write(line) {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

function view(message) {
  return {
    message_id: message.messageId,
    topic: message.topic,
    body: message.body.subarray(0, 100).toString(),
    size: message.body.length,
    md5: createHash('md5').update(message.body).digest('hex'),
    tag: message.tag ?? null,
    keys: message.keys,
    group: message.messageGroup ?? null,
    properties: Object.fromEntries(message.properties),
    attempt: message.deliveryAttempt,
  };
}

function options(command) {
  const given = { endpoints: command.endpoints, namespace: '', sslEnabled: Boolean(command.tls) };
  if (command.access_key) {
    given.sessionCredentials = {
      accessKey: command.access_key, accessSecret: command.secret_key,
    };
  }
  return given;
}

function consumerOptions(command) {
  const filter = command.sql
    ? new FilterExpression(command.sql, FilterType.SQL)
    : new FilterExpression(command.tag ?? '*');
  return {
    ...options(command),
    consumerGroup: command.group,
    subscriptions: new Map([[command.topic, filter]]),
  };
}

async function start(name, client) {
  await client.startup();
  clients.set(name, client);
  return {};
}

async function send(producer, command) {
  let body = Buffer.from(command.body);
  if (command.size) {
    body = Buffer.alloc(command.size, body);
  }
  const message = { topic: command.topic, body, tag: command.tag, messageGroup: command.group };
  if (command.key) {
    message.keys = [command.key];
  }
  if (command.delay_s !== undefined) {
    message.deliveryTimestamp = new Date(Date.now() + command.delay_s * 1000);
  }
  if (command.priority !== undefined) {
    message.priority = command.priority;
  }
  if (command.properties) {
    message.properties = new Map(Object.entries(command.properties));
  }
  let receipt;
  if (command.end) {
    const transaction = producer.beginTransaction();
    receipt = await producer.send(message, transaction);
    if (command.end === 'commit') {
      await transaction.commit();
    } else if (command.end === 'rollback') {
      await transaction.rollback();
    }
  } else {
    receipt = await producer.send(message);
  }
  return { message_id: receipt.messageId, recall_handle: receipt.recallHandle };
}

// Fails as often as the message's property "fail" says.
function consume(name, message) {
  write({ event: 'delivery', name, ...view(message) });
  const count = (deliveries.get(message.messageId) ?? 0) + 1;
  deliveries.set(message.messageId, count);
  const fails = count <= Number(message.properties.get('fail') ?? 0);
  return fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
}

async function carryOut(command) {
  const { name } = command;
  const client = clients.get(name);
  switch (command.do) {
    case 'producer': {
      const given = { ...options(command), topics: command.topics };
      if (command.check) {
        given.checker = {
          async check(message) {
            write({ event: 'check', ...view(message) });
            return RESOLUTIONS[command.check];
          },
        };
      }
      return start(name, new Producer(given));
    }
    case 'simple':
      return start(name, new SimpleConsumer({ ...consumerOptions(command), awaitDuration: 5000 }));
    case 'push':
      return start(name, new PushConsumer({
        ...consumerOptions(command),
        messageListener: { consume: async message => consume(name, message) },
      }));
    case 'send':
      return send(client, command);
    case 'recall': {
      const receipt = await client.recallMessage(command.topic, command.handle);
      return { message_id: receipt.messageId };
    }
    case 'receive': {
      const messages = [];
      for (const message of await client.receive(command.max, command.invisible_s * 1000)) {
        const key = `m${held.size}`;
        held.set(key, message);
        messages.push({ message: key, ...view(message) });
      }
      return { messages };
    }
    case 'ack':
      await client.ack(held.get(command.message));
      return {};
    case 'change':
      await client.changeInvisibleDuration(held.get(command.message), command.invisible_s * 1000);
      return {};
    case 'close':
      clients.delete(name);
      await client.shutdown();
      return {};
    default:
      throw new Error(`unknown command ${command.do}`);
  }
}

async function main() {
  for await (const line of createInterface({ input: process.stdin })) {
    const command = JSON.parse(line);
    let answer;
    try {
      answer = await carryOut(command);
    } catch (error) {
      answer = { error: String(error) };
    }
    write({ id: command.id, ...answer });
  }
  process.exit(0);
}

main();
