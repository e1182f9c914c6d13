// Command built is a function for the test that the runner compiles functions.
package main

import (
	"context"

	"github.com/aws/aws-lambda-go/lambda"
)

func main() {
	lambda.Start(func(context.Context, any) (string, error) { return "built", nil })
}
