# The image contains only the server: one static binary, which runs as a user without special rights, with one volume.
#
#   docker build --tag mcpevents .
#   docker run --rm mcpevents demo
#   docker run --read-only --volume data:/data --volume "$PWD/etc:/etc/mcpevents:ro" --publish 8080:8080 mcpevents

FROM --platform=$BUILDPLATFORM golang:1.26.8 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG TARGETOS TARGETARCH VERSION=0.1.0
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -pgo=packaging/server.pgo \
      -ldflags "-s -w -X github.com/mcp-events/mcpevents/shared/app.Version=$VERSION" -o /image/mcpevents ./cmd/mcpevents \
 && mkdir -p /image/data /image/etc/mcpevents /image/etc/ssl/certs \
 && cp catalog.yaml /image/etc/mcpevents/ \
 && cp /etc/ssl/certs/ca-certificates.crt /image/etc/ssl/certs/

FROM scratch
COPY --from=build --chown=65532:65532 /image/data /data
COPY --from=build /image/etc /etc
COPY --from=build /image/mcpevents /mcpevents
USER 65532:65532
ENV MCPEVENTS_ADDR=0.0.0.0:8080 \
    MCPEVENTS_DATA=/data \
    MCPEVENTS_CATALOG=/etc/mcpevents/catalog.yaml \
    MCPEVENTS_CONFIG=/etc/mcpevents/config.yaml \
    MCPEVENTS_AUTH=keys \
    TMPDIR=/data
EXPOSE 8080
VOLUME /data
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s CMD ["/mcpevents", "health"]
ENTRYPOINT ["/mcpevents"]
CMD ["serve"]
