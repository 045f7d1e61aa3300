//! Carries out the commands of sdks.py, one JSON object a line, with the official Rust SDK.

use std::collections::HashMap;
use std::io::BufRead;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use serde_json::{json, Value};

type Failure = Box<dyn std::error::Error>;

struct Consumer {
    client: SimpleConsumer,
    topic: String,
    filter: FilterExpression,
}

#[derive(Default)]
struct Clients {
    producers: HashMap<String, Producer>,
    consumers: HashMap<String, Consumer>,
    held: HashMap<String, MessageView>,
}

fn text(command: &Value, field: &str) -> String {
    command[field].as_str().unwrap_or_default().to_string()
}

/// Writes a line at once, and begins it: the SDK's log may be in the middle of one.
fn write(line: &Value) {
    print!("{}", format!("\n{line}\n"));
}

fn view(message: &MessageView) -> Value {
    let body = message.body();
    json!({
        "message_id": message.message_id(),
        "topic": message.topic(),
        "body": String::from_utf8_lossy(&body[..body.len().min(100)]),
        "size": body.len(),
        "tag": message.tag(),
        "keys": message.keys(),
        "group": message.message_group(),
        "properties": message.properties(),
        "attempt": message.delivery_attempt(),
    })
}

fn options(command: &Value) -> ClientOption {
    let mut option = ClientOption::default();
    option.set_access_url(text(command, "endpoints"));
    option.set_enable_tls(command["tls"].as_bool().unwrap_or(false));
    // it is the deadline of the call as well, of which servers poll for five seconds at least
    option.set_long_polling_timeout(Duration::from_secs(8));
    if !command["access_key"].is_null() {
        option.set_access_key(text(command, "access_key"));
        option.set_secret_key(text(command, "secret_key"));
    }
    option
}

async fn producer(command: &Value) -> Result<Producer, Failure> {
    let mut option = ProducerOption::default();
    let topics = command["topics"].as_array().cloned().unwrap_or_default();
    option.set_topics(topics.iter().filter_map(Value::as_str).collect());
    let check = text(command, "check");
    let mut made = if check.is_empty() {
        Producer::new(option, options(command))?
    } else {
        let checker = move |_: String, message: MessageView| {
            let mut event = view(&message);
            event["event"] = json!("check");
            write(&event);
            match check.as_str() {
                "commit" => TransactionResolution::COMMIT,
                "rollback" => TransactionResolution::ROLLBACK,
                _ => TransactionResolution::UNKNOWN,
            }
        };
        Producer::new_transaction_producer(option, options(command), Box::new(checker))?
    };
    made.start().await?;
    Ok(made)
}

async fn consumer(command: &Value) -> Result<Consumer, Failure> {
    let topic = text(command, "topic");
    let mut option = SimpleConsumerOption::default();
    option.set_topics(vec![topic.clone()]);
    option.set_consumer_group(text(command, "group"));
    let filter = match (command["sql"].as_str(), command["tag"].as_str()) {
        (Some(sql), _) => FilterExpression::new(FilterType::Sql, sql),
        (None, tag) => FilterExpression::new(FilterType::Tag, tag.unwrap_or("*")),
    };
    let mut client = SimpleConsumer::new(option, options(command))?;
    client.start().await?;
    Ok(Consumer { client, topic, filter })
}

async fn send(producer: &Producer, command: &Value) -> Result<Value, Failure> {
    let mut body = text(command, "body").into_bytes();
    if let Some(size) = command["size"].as_u64() {
        body = body.iter().cycle().take(size as usize).copied().collect();
    }
    let end = command["end"].as_str();
    let mut builder = MessageBuilder::builder().set_topic(text(command, "topic")).set_body(body);
    if let Some(tag) = command["tag"].as_str() {
        builder = builder.set_tag(tag);
    }
    if let Some(key) = command["key"].as_str() {
        builder = builder.set_keys(vec![key]);
    }
    if let Some(group) = command["group"].as_str() {
        builder = builder.set_message_group(group);
    }
    if let Some(delay_s) = command["delay_s"].as_i64() {
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() as i64;
        builder = builder.set_delivery_timestamp(now_s + delay_s);
    }
    if let Some(properties) = command["properties"].as_object() {
        let pairs = properties.iter().map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_string()));
        builder = builder.set_properties(pairs.collect());
    }
    let Some(end) = end else {
        let receipt = producer.send(builder.build()?).await?;
        return Ok(json!({ "message_id": receipt.message_id() }));
    };
    let message = builder.enable_transaction().build()?;
    let transaction = producer.send_transaction_message(message).await?;
    let id = transaction.message_id().to_string();
    match end {
        "commit" => transaction.commit().await?,
        "rollback" => transaction.rollback().await?,
        _ => {}
    }
    Ok(json!({ "message_id": id }))
}

impl Clients {
    async fn carry_out(&mut self, command: &Value) -> Result<Value, Failure> {
        let name = text(command, "name");
        match command["do"].as_str().unwrap_or_default() {
            "producer" => {
                self.producers.insert(name, producer(command).await?);
            }
            "simple" => {
                self.consumers.insert(name, consumer(command).await?);
            }
            "send" => return send(&self.producers[&name], command).await,
            "receive" => {
                let Consumer { client, topic, filter } = &self.consumers[&name];
                let max = command["max"].as_i64().unwrap_or(1) as i32;
                let invisible = Duration::from_secs(command["invisible_s"].as_u64().unwrap_or(30));
                let mut messages = vec![];
                for message in client.receive_with(topic, filter, max, invisible).await? {
                    let key = format!("m{}", self.held.len());
                    let mut found = view(&message);
                    found["message"] = json!(key);
                    messages.push(found);
                    self.held.insert(key, message);
                }
                return Ok(json!({ "messages": messages }));
            }
            "ack" => {
                let message = &self.held[&text(command, "message")];
                self.consumers[&name].client.ack(message).await?;
            }
            "close" => {
                if let Some(client) = self.producers.remove(&name) {
                    client.shutdown().await?;
                } else if let Some(consumer) = self.consumers.remove(&name) {
                    consumer.client.shutdown().await?;
                }
            }
            other => return Err(format!("the SDK has no {other}").into()),
        }
        Ok(json!({}))
    }
}

#[tokio::main]
async fn main() {
    let mut clients = Clients::default();
    for line in std::io::stdin().lock().lines() {
        let command: Value = serde_json::from_str(&line.expect("a line")).expect("JSON");
        let mut answer = match clients.carry_out(&command).await {
            Ok(answer) => answer,
            Err(error) => json!({ "error": error.to_string() }),
        };
        answer["id"] = command["id"].clone();
        write(&answer);
    }
}
