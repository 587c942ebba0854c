// Renders templates as ollama does: each line of standard input is an object with a `template` and the `messages`, and each
// line of standard output the prompt as JSON.
package main

import (
	"bufio"
	"encoding/json"
	"os"
	"strings"
	"text/template"
)

type message struct{ Role, Content string }

type task struct {
	Template string
	Messages []message
}

func prompt(line []byte) (any, error) {
	var it task
	if err := json.Unmarshal(line, &it); err != nil {
		return nil, err
	}
	parsed, err := template.New("").Option("missingkey=zero").Parse(it.Template)
	if err != nil {
		return nil, err
	}
	var system []string
	for _, message := range it.Messages {
		if message.Role == "system" {
			system = append(system, message.Content)
		}
	}
	var text strings.Builder
	values := map[string]any{"System": strings.Join(system, "\n\n"), "Messages": it.Messages, "Response": ""}
	if err := parsed.Execute(&text, values); err != nil {
		return nil, err
	}
	return text.String(), nil
}

func main() {
	lines, out := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		text, err := prompt(lines.Bytes())
		if err != nil {
			text = map[string]string{"error": err.Error()}
		}
		out.Encode(text)
	}
}
