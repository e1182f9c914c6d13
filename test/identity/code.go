package identity

import (
	"crypto/rand"
	"crypto/sha256"
	"maps"
	"net/http"
	"net/url"
)

// authorize signs "operator" in without asking and redirects with a code (RFC 6749, section 4.1). The code is valid for one
// token and needs the verifier of its challenge (RFC 7636).
func (p *Provider) authorize(w http.ResponseWriter, r *http.Request) {
	asked := r.URL.Query()
	if asked.Get("response_type") != "code" || asked.Get("code_challenge_method") != "S256" || asked.Get("code_challenge") == "" || asked.Get("state") == "" {
		http.Error(w, "invalid_request", http.StatusBadRequest)
		return
	}
	code := rand.Text()
	if p.codes == nil {
		p.codes = map[string]url.Values{}
	}
	p.codes[code] = asked
	back := url.Values{"code": {code}, "state": {asked.Get("state")}, "iss": {p.Issuer}}
	http.Redirect(w, r, asked.Get("redirect_uri")+"?"+back.Encode(), http.StatusFound)
}

// redeem gives the token of a code.
func (p *Provider) redeem(w http.ResponseWriter, r *http.Request) Claims {
	code := r.PostFormValue("code")
	asked, ok := p.codes[code]
	delete(p.codes, code)
	sum := sha256.Sum256([]byte(r.PostFormValue("code_verifier")))
	if !ok || asked.Get("code_challenge") != Encode(sum[:]) || asked.Get("client_id") != r.PostFormValue("client_id") ||
		asked.Get("redirect_uri") != r.PostFormValue("redirect_uri") || asked.Get("resource") != r.PostFormValue("resource") {
		w.WriteHeader(http.StatusBadRequest)
		return Claims{"error": "invalid_grant"}
	}
	claims := p.Claims("operator", asked.Get("scope"), Claims{"aud": asked.Get("resource")})
	token := p.keys[0].Sign(p.tb, nil, maps.Clone(claims))
	return Claims{"access_token": token, "token_type": "Bearer", "expires_in": 300, "scope": asked.Get("scope")}
}
