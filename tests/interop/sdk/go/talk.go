// Carries out the commands of sdks.py, one JSON object a line, with the official Go SDK.
package main

import (
	"bufio"
	"context"
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

type command struct {
	ID         int               `json:"id"`
	Do         string            `json:"do"`
	Name       string            `json:"name"`
	Endpoints  string            `json:"endpoints"`
	TLS        bool              `json:"tls"`
	AccessKey  string            `json:"access_key"`
	SecretKey  string            `json:"secret_key"`
	Topics     []string          `json:"topics"`
	Check      string            `json:"check"`
	Topic      string            `json:"topic"`
	Group      string            `json:"group"`
	Tag        string            `json:"tag"`
	SQL        string            `json:"sql"`
	Key        string            `json:"key"`
	Body       string            `json:"body"`
	Size       int               `json:"size"`
	DelayS     *float64          `json:"delay_s"`
	Priority   *int32            `json:"priority"`
	Properties map[string]string `json:"properties"`
	End        string            `json:"end"`
	Handle     string            `json:"handle"`
	Message    string            `json:"message"`
	Max        int32             `json:"max"`
	InvisibleS float64           `json:"invisible_s"`
}

type object = map[string]any

var (
	printing  sync.Mutex
	producers = map[string]rmq.Producer{}
	simples   = map[string]rmq.SimpleConsumer{}
	pushes    = map[string]rmq.PushConsumer{}
	held      = map[string]*rmq.MessageView{}

	counting   sync.Mutex
	deliveries = map[string]int{} // to push consumers, by message
)

func write(line object) {
	text, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	printing.Lock()
	defer printing.Unlock()
	os.Stdout.Write(append(text, '\n'))
}

func seconds(number float64) time.Duration {
	return time.Duration(number * float64(time.Second))
}

func view(message *rmq.MessageView) object {
	body := message.GetBody()
	digest := md5.Sum(body)
	return object{
		"message_id": message.GetMessageId(),
		"topic":      message.GetTopic(),
		"body":       string(body[:min(len(body), 100)]),
		"size":       len(body),
		"md5":        hex.EncodeToString(digest[:]),
		"tag":        message.GetTag(),
		"keys":       append([]string{}, message.GetKeys()...),
		"group":      message.GetMessageGroup(),
		"properties": message.GetProperties(),
		"attempt":    message.GetDeliveryAttempt(),
	}
}

func configuration(c *command) *rmq.Config {
	rmq.EnableSsl = c.TLS
	return &rmq.Config{
		Endpoint:      c.Endpoints,
		ConsumerGroup: c.Group,
		Credentials: &credentials.SessionCredentials{
			AccessKey: c.AccessKey, AccessSecret: c.SecretKey,
		},
	}
}

func subscription(c *command) map[string]*rmq.FilterExpression {
	if c.SQL != "" {
		filter := rmq.NewFilterExpressionWithType(c.SQL, rmq.SQL92)
		return map[string]*rmq.FilterExpression{c.Topic: filter}
	}
	if c.Tag != "" {
		return map[string]*rmq.FilterExpression{c.Topic: rmq.NewFilterExpression(c.Tag)}
	}
	return map[string]*rmq.FilterExpression{c.Topic: rmq.SUB_ALL}
}

// check reports the message and gives the answer that the command names.
func check(answer string) func(*rmq.MessageView) rmq.TransactionResolution {
	return func(message *rmq.MessageView) rmq.TransactionResolution {
		event := view(message)
		event["event"] = "check"
		write(event)
		return map[string]rmq.TransactionResolution{
			"commit": rmq.COMMIT, "rollback": rmq.ROLLBACK, "unknown": rmq.UNKNOWN,
		}[answer]
	}
}

// consume fails as often as the message's property "fail" says.
func consume(name string) func(*rmq.MessageView) rmq.ConsumerResult {
	return func(message *rmq.MessageView) rmq.ConsumerResult {
		event := view(message)
		event["event"], event["name"] = "delivery", name
		write(event)
		fails, _ := strconv.Atoi(message.GetProperties()["fail"])
		counting.Lock()
		defer counting.Unlock()
		deliveries[message.GetMessageId()]++
		if deliveries[message.GetMessageId()] <= fails {
			return rmq.FAILURE
		}
		return rmq.SUCCESS
	}
}

func send(c *command) (object, error) {
	producer := producers[c.Name]
	body := c.Body
	if c.Size > 0 {
		body = strings.Repeat(body, c.Size/len(body)+1)[:c.Size]
	}
	message := &rmq.Message{Topic: c.Topic, Body: []byte(body)}
	if c.Tag != "" {
		message.SetTag(c.Tag)
	}
	if c.Key != "" {
		message.SetKeys(c.Key)
	}
	if c.Group != "" {
		message.SetMessageGroup(c.Group)
	}
	if c.DelayS != nil {
		message.SetDelayTimestamp(time.Now().Add(seconds(*c.DelayS)))
	}
	if c.Priority != nil {
		if err := message.SetPriority(*c.Priority); err != nil {
			return nil, err
		}
	}
	for key, value := range c.Properties {
		message.AddProperty(key, value)
	}
	var receipts []*rmq.SendReceipt
	var err error
	if c.End == "" {
		receipts, err = producer.Send(context.Background(), message)
	} else {
		transaction := producer.BeginTransaction()
		receipts, err = producer.SendWithTransaction(context.Background(), message, transaction)
		if err == nil && c.End == "commit" {
			err = transaction.Commit()
		} else if err == nil && c.End == "rollback" {
			err = transaction.RollBack()
		}
	}
	if err != nil {
		return nil, err
	}
	return object{
		"message_id": receipts[0].MessageID, "recall_handle": receipts[0].RecallHandle,
	}, nil
}

func receive(c *command) (object, error) {
	messages, err := simples[c.Name].Receive(
		context.Background(), c.Max, seconds(c.InvisibleS))
	var status *rmq.ErrRpcStatus
	// the SDK reports "no new message" as an error
	if err != nil && !(errors.As(err, &status) && status.Code == 40401) {
		return nil, err
	}
	seen := []object{}
	for _, message := range messages {
		key := fmt.Sprintf("m%d", len(held))
		held[key] = message
		each := view(message)
		each["message"] = key
		seen = append(seen, each)
	}
	return object{"messages": seen}, nil
}

func carryOut(c *command) (answer object, err error) {
	defer func() {
		if problem := recover(); problem != nil {
			err = fmt.Errorf("panic: %v", problem)
		}
	}()
	switch c.Do {
	case "producer":
		options := []rmq.ProducerOption{rmq.WithTopics(c.Topics...)}
		if c.Check != "" {
			checker := &rmq.TransactionChecker{Check: check(c.Check)}
			options = append(options, rmq.WithTransactionChecker(checker))
		}
		producer, err := rmq.NewProducer(configuration(c), options...)
		if err != nil {
			return nil, err
		}
		producers[c.Name] = producer
		return nil, producer.Start()
	case "simple":
		consumer, err := rmq.NewSimpleConsumer(configuration(c),
			rmq.WithSimpleAwaitDuration(5*time.Second),
			rmq.WithSimpleSubscriptionExpressions(subscription(c)))
		if err != nil {
			return nil, err
		}
		simples[c.Name] = consumer
		return nil, consumer.Start()
	case "push":
		consumer, err := rmq.NewPushConsumer(configuration(c),
			rmq.WithPushAwaitDuration(5*time.Second),
			rmq.WithPushSubscriptionExpressions(subscription(c)),
			rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: consume(c.Name)}))
		if err != nil {
			return nil, err
		}
		pushes[c.Name] = consumer
		return nil, consumer.Start()
	case "send":
		return send(c)
	case "recall":
		id, err := producers[c.Name].Recall(context.Background(), c.Topic, c.Handle)
		return object{"message_id": id}, err
	case "receive":
		return receive(c)
	case "ack":
		return nil, simples[c.Name].Ack(context.Background(), held[c.Message])
	case "change":
		return nil, simples[c.Name].ChangeInvisibleDuration(held[c.Message], seconds(c.InvisibleS))
	case "close":
		if producer, found := producers[c.Name]; found {
			delete(producers, c.Name)
			return nil, producer.GracefulStop()
		}
		if consumer, found := pushes[c.Name]; found {
			delete(pushes, c.Name)
			return nil, consumer.GracefulStop()
		}
		consumer := simples[c.Name]
		delete(simples, c.Name)
		return nil, consumer.GracefulStop()
	}
	return nil, fmt.Errorf("unknown command %q", c.Do)
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var c command
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			panic(err)
		}
		answer, err := carryOut(&c)
		if err != nil {
			answer = object{"error": err.Error()}
		} else if answer == nil {
			answer = object{}
		}
		answer["id"] = c.ID
		write(answer)
	}
}
