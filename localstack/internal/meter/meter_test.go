package meter_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"mcpevents/localstack/internal/meter"
)

func TestMeterCountsWhatAWSWouldBill(t *testing.T) {
	emulator := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch r.Header.Get("X-Amz-Target") {
		case "DynamoDB_20120810.PutItem":
			if !strings.Contains(string(body), `"ReturnConsumedCapacity":"TOTAL"`) {
				t.Errorf("the capacity was not asked for: %s", body)
			}
			_, _ = io.WriteString(w, `{"ConsumedCapacity":{"TableName":"t","CapacityUnits":2.0}}`)
		case "DynamoDB_20120810.BatchGetItem":
			_, _ = io.WriteString(w, `{"ConsumedCapacity":[{"CapacityUnits":1.0},{"CapacityUnits":0.5}],"Responses":{}}`)
		case "AmazonSQS.ReceiveMessage":
			_, _ = io.WriteString(w, `{}`)
		}
	}))
	defer emulator.Close()
	m := meter.New()
	h, err := m.To(emulator.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httptest.NewServer(h)
	defer proxy.Close()
	call := func(target, body string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, proxy.URL, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Amz-Target", target)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	call("DynamoDB_20120810.PutItem", `{"TableName":"t","Item":{}}`)
	call("DynamoDB_20120810.BatchGetItem", `{}`)
	call("AmazonSQS.SendMessageBatch", `{"Entries":"`+strings.Repeat("x", 100<<10)+`"}`)
	call("AmazonSQS.ReceiveMessage", `{}`)

	got := m.Counts()
	if got.Units["dynamodb.PutItem"] != 2 || got.Units["dynamodb.BatchGetItem"] != 1.5 {
		t.Errorf("units %v", got.Units)
	}
	if got.Pieces["sqs.SendMessageBatch"] != 2 || got.Requests["sqs.SendMessageBatch"] != 1 {
		t.Errorf("pieces %v of requests %v", got.Pieces, got.Requests)
	}
	if got.Empty != 1 {
		t.Errorf("%d empty receives", got.Empty)
	}
	m.Reset()
	if n := len(m.Counts().Requests); n != 0 {
		t.Errorf("%d operations after a reset", n)
	}
}
