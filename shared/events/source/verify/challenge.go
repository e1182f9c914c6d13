package verify

// maxChallenge is the longest challenge that is answered; those of Slack have some fifty characters.
const maxChallenge = 1000

// Challenge is what Slack wants to have back when a URL is entered there (url_verification of
// its Events API), if body, the decoded JSON of a verified request, is that.
func Challenge(body any) (string, bool) {
	object, _ := body.(map[string]any)
	if object["type"] != "url_verification" {
		return "", false
	}
	challenge, ok := object["challenge"].(string)
	if !ok || challenge == "" || len(challenge) > maxChallenge {
		return "", false
	}
	return challenge, true
}
