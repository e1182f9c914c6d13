import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Executors;
import software.amazon.event.ruler.JsonRuleCompiler;
import software.amazon.event.ruler.Machine;
import software.amazon.event.ruler.Patterns;

/**
 * Tells which documents match which event patterns by Event Ruler, on a free port of 127.0.0.1, and
 * prints "listening HOST:PORT".
 *
 * <p>A POST has [{"pattern": TEXT, "documents": [TEXT…]}…]; the answer has [{"matches": [BOOLEAN…]} or
 * {"refused": TEXT}…] in the same order. It ends when its standard input does, so that it never
 * outlives the test that started it.
 */
public final class Emulator {
  private static final ObjectMapper JSON = new ObjectMapper();

  public static void main(String[] args) throws Exception {
    Thread owner = new Thread(Emulator::awaitOwner, "owner");
    owner.setDaemon(true);
    owner.start();

    HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
    server.setExecutor(Executors.newFixedThreadPool(2));
    server.createContext("/", Emulator::answer);
    server.start();
    System.out.println("listening 127.0.0.1:" + server.getAddress().getPort());
    Thread.currentThread().join();
  }

  private static void answer(HttpExchange exchange) throws IOException {
    try (exchange) {
      ArrayNode out = JSON.createArrayNode();
      for (JsonNode question : JSON.readTree(exchange.getRequestBody())) {
        out.add(evaluate(question));
      }
      byte[] body = JSON.writeValueAsBytes(out);
      exchange.sendResponseHeaders(200, body.length);
      exchange.getResponseBody().write(body);
    }
  }

  private static ObjectNode evaluate(JsonNode question) {
    ObjectNode answer = JSON.createObjectNode();
    List<Machine> machines = new ArrayList<>();
    try {
      // false: a path that is said twice is refused, as EventBridge does, not overridden by the later one.
      for (Map<String, List<Patterns>> alternative :
          JsonRuleCompiler.compile(question.get("pattern").asText(), false)) {
        // A machine for each alternative: in one, version 2.1.0 answers wrongly at times. For
        // {"$or": [{"a": [{"wildcard": "xy"}]}, {"a": [{"exists": true}]}]} it finds no match in {"a": null}.
        Machine machine = new Machine();
        machine.addPatternRule("rule", alternative);
        machines.add(machine);
      }
    } catch (Exception | StackOverflowError e) {
      return answer.put("refused", String.valueOf(e.getMessage()));
    }
    ArrayNode matches = answer.putArray("matches");
    for (JsonNode document : question.get("documents")) {
      try {
        boolean any = false;
        for (Machine machine : machines) {
          any |= !machine.rulesForJSONEvent(document.asText()).isEmpty();
        }
        matches.add(any);
      } catch (Exception e) {
        return answer.put("failed", String.valueOf(e));
      }
    }
    return answer;
  }

  private static void awaitOwner() {
    try {
      while (System.in.read() >= 0) {
        // The owner writes nothing.
      }
    } catch (IOException gone) {
      // As good as the end.
    }
    Runtime.getRuntime().halt(0);
  }
}
